"""Align two score tables, or refuse with everything that forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.run_agreement import (
    Mismatch,
    Names,
    canonical_generation,
    compare_hashes,
    names_of,
    refuse_if_any,
)
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError, UsageError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Two aligned score tables: the same documents, in the same ascending order of doc_id.

    Attributes:
        allow: differences that the user declared ("prompt", "tokens").
        caveats: what differs as declared, and what could not be checked.
    """

    base: ScoreTable
    candidate: ScoreTable
    allow: frozenset[str] = frozenset()
    caveats: tuple[str, ...] = ()

    @property
    def clusters(self) -> tuple[str, ...]:
        """Labels of the documents that belong together, n of them; () where each stands alone."""
        return self.base.clusters

    @property
    def d(self) -> NDArray[np.float64]:
        """Per-document differences, float64, shape (n,), positive where the candidate is worse.

        In the unit of the values: nats for log-likelihoods, else the metric's unit. A
        log-likelihood that falls makes a perplexity rise, hence the two cases.
        """
        loglikelihoods = self.base.aggregation != "mean"
        higher_values_are_better = self.base.higher_is_better != loglikelihoods
        if higher_values_are_better:
            return self.base.values - self.candidate.values
        return self.candidate.values - self.base.values


_Field = TypeVar("_Field", str, bool)
_WEIGHTED = frozenset({"weighted_perplexity", "bits_per_byte"})


def order_rows(table: ScoreTable, name: str) -> ScoreTable:
    """Return the table in ascending doc_id; the same object where it already is.

    Raises:
        MisalignedRunsError: for a malformed table or a doc_id that occurs twice.
    """
    _check_shapes(table, name)
    order = np.argsort(table.doc_ids, kind="stable")
    if not np.array_equal(order, np.arange(table.n)):
        table = pick_rows(table, order)
    repeated = np.flatnonzero(table.doc_ids[1:] == table.doc_ids[:-1])
    if repeated.size:
        raise MisalignedRunsError(
            f"{name} has {repeated.size:,} repeated doc_ids (first: {table.doc_ids[repeated[0]]})",
            of=f"{table.task} ({table.filter}) {table.metric}",
            hint="average repeated runs of a document before they are paired",
        )
    return table


def pick_rows(table: ScoreTable, rows: NDArray[np.int64]) -> ScoreTable:
    """Return the table's rows at these positions, in this order."""

    def pick(fields: Sequence[_Field]) -> tuple[_Field, ...]:
        return tuple(fields[row] for row in rows) if fields else ()

    return replace(
        table,
        doc_ids=table.doc_ids[rows],
        values=table.values[rows],
        weights=None if table.weights is None else table.weights[rows],
        rescoring=None if table.rescoring is None else table.rescoring.picked(rows),
        doc_hashes=pick(table.doc_hashes),
        prompt_hashes=pick(table.prompt_hashes),
        target_hashes=pick(table.target_hashes),
        asked_hashes=pick(table.asked_hashes),
        token_hashes=pick(table.token_hashes),
        each_answer=None if table.each_answer is None else table.each_answer[rows],
        answers=pick(table.answers),
        clusters=pick(table.clusters),
        cut=pick(table.cut),
    )


def finite_rows(base: ScoreTable, candidate: ScoreTable) -> tuple[ScoreTable, ScoreTable]:
    """Return two tables of the same documents without those that lack a finite score on a side.

    The same objects where there is nothing to leave out, or the documents are not the same.
    """
    if not np.array_equal(base.doc_ids, candidate.doc_ids):
        return base, candidate
    finite = np.isfinite(base.values) & np.isfinite(candidate.values)
    if bool(finite.all()):
        return base, candidate
    rows = np.flatnonzero(finite)
    return pick_rows(base, rows), pick_rows(candidate, rows)


def _check_shapes(table: ScoreTable, name: str) -> None:
    n = table.n
    problems = []
    if table.doc_ids.shape != (n,):
        problems.append(f"doc_ids of shape {table.doc_ids.shape}")
    if table.values.shape != (n,):
        problems.append(f"values of shape {table.values.shape}")
    if table.weights is not None and table.weights.shape != (n,):
        problems.append(f"weights of shape {table.weights.shape}")
    if (table.rescoring is not None) != (table.aggregation == "other"):
        problems.append(f"aggregation {table.aggregation} and rescoring {table.rescoring}")
    elif table.rescoring is not None and len(table.rescoring.items) != n:
        problems.append(f"{len(table.rescoring.items)} items to rescore")
    if table.each_answer is not None and table.each_answer.shape[0] != n:
        problems.append(f"single answers of shape {table.each_answer.shape}")
    for field in ("doc_hashes", "prompt_hashes", "target_hashes"):
        if len(getattr(table, field)) != n:
            problems.append(f"{len(getattr(table, field))} {field}")
    for field in ("asked_hashes", "token_hashes", "answers", "clusters", "cut"):
        if len(getattr(table, field)) not in (0, n):
            problems.append(f"{len(getattr(table, field))} {field}")
    if (table.weights is not None) != (table.aggregation in _WEIGHTED):
        presence = "no weights" if table.weights is None else "weights, which have no use"
        problems.append(f"{presence} for {table.aggregation}")
    if problems:
        raise MisalignedRunsError(
            f"{name} has a malformed score table of {n:,} documents with {', '.join(problems)}",
            of=f"{table.task} ({table.filter}) {table.metric}",
        )


ALLOWED = frozenset({"prompt", "tokens", "length", "reading"})
_RUN_HINTS = {
    "rolling_bos": "read whole texts alike: run: {rolling_bos: ...} as in the stored run",
    "limit": "run both with the same --limit",
}
# Fields that name the metric itself: where they differ, the tables are about different things.
_IDENTITY = ("task", "filter", "metric", "aggregation", "higher_is_better")


def pair(
    base: ScoreTable, candidate: ScoreTable, *, allow: frozenset[str] = frozenset()
) -> PairedScores:
    """Align two score tables, or refuse.

    Tables that are not in ascending doc_id are sorted first. Of a figure of generated answers the
    documents that it is not known of on either side are left out, once all are aligned, and a
    caveat says how many. Token ids that a run does not show
    are not compared, and a caveat says so; any other hash has to be there. Where "prompt" is
    allowed, token ids are compared only for documents whose prompts agree, since another text
    cannot have the same ids.

    Args:
        allow: differences under test: "prompt" (a chat template), "tokens" (BOS, a tokenizer),
            "length" (token ids only of documents that either side's context length cuts),
            "reading" (another lm-eval, or an unknown one, where token ids are not shown).

    Raises:
        UsageError: for an unknown item of ``allow``.
        MisalignedRunsError: for tables of different metrics, malformed tables, different
            documents, hashes or weights, or different run conditions; one error with all kinds of
            mismatch, each with its count and the first document.
    """
    for item in sorted(allow - ALLOWED):
        raise UsageError(
            f"cannot allow '{item}' to differ{nearest(item, ALLOWED)}",
            hint=f"what may differ: {', '.join(sorted(ALLOWED))}",
        )
    names = names_of(base, candidate)
    refuse_if_any(base, names, _identity_mismatches(base, candidate, names))
    base, candidate = order_rows(base, names[0]), order_rows(candidate, names[1])
    run_mismatches = _run_mismatches(base, candidate, names)
    if not np.array_equal(base.doc_ids, candidate.doc_ids):
        run_mismatches += _document_mismatches(base, candidate, names)
        # Only to say what else is wrong: the documents that both have.
        _, ours, theirs = np.intersect1d(
            base.doc_ids, candidate.doc_ids, assume_unique=True, return_indices=True
        )
        run_mismatches += compare_hashes(
            pick_rows(base, ours), pick_rows(candidate, theirs), allow
        )[0]
        refuse_if_any(base, names, run_mismatches)
    mismatches, caveats = compare_hashes(base, candidate, allow)
    mismatches += [*_weight_mismatches(base, candidate), *_cluster_mismatches(base, candidate)]
    refuse_if_any(base, names, [*run_mismatches, *mismatches])
    if base.figure and candidate.figure:
        known = finite_rows(base, candidate)
        caveats += _unknown_caveat(base.n, known[0].n, base.metric)
        base, candidate = known
    return PairedScores(base=base, candidate=candidate, allow=allow, caveats=tuple(caveats))


def _unknown_caveat(asked: int, known: int, figure: str) -> list[str]:
    if known == asked:
        return []
    return [f"{figure} is known of {known:,} of {asked:,} documents on both sides: of these it is"]


def _identity_mismatches(base: ScoreTable, candidate: ScoreTable, names: Names) -> list[Mismatch]:
    ours, theirs = (side.rescoring.name if side.rescoring else "" for side in (base, candidate))
    renamed = [Mismatch(f"aggregation is {ours!r} in {names[0]} and {theirs!r} in {names[1]}")]
    return (renamed if ours and theirs and ours != theirs else []) + [
        Mismatch(
            f"{field} is {getattr(base, field)!r} in {names[0]} and "
            f"{getattr(candidate, field)!r} in {names[1]}"
        )
        for field in _IDENTITY
        if getattr(base, field) != getattr(candidate, field)
    ]


def _run_mismatches(base: ScoreTable, candidate: ScoreTable, names: Names) -> list[Mismatch]:
    return [
        Mismatch(
            f"{key} is {base.run[key]!r} in {names[0]} and {candidate.run[key]!r} in {names[1]}",
            hint=_RUN_HINTS.get(key, f"run both with the same {key}"),
        )
        for key in sorted(base.run.keys() & candidate.run.keys())
        if _comparable(key, base.run[key]) != _comparable(key, candidate.run[key])
    ]


def _comparable(key: str, value: Value) -> Value:
    return canonical_generation(value) if key == "generation_kwargs" else value


def _document_mismatches(base: ScoreTable, candidate: ScoreTable, names: Names) -> list[Mismatch]:
    differences = []
    for own, reference, name in ((base, candidate, names[0]), (candidate, base, names[1])):
        extra = np.setdiff1d(own.doc_ids, reference.doc_ids, assume_unique=True)
        if extra.size:
            differences.append(
                f"{extra.size:,} documents only in {name} (first: doc_id {extra[0]})"
            )
    shorter = min(base.n, candidate.n)
    hint, text = "score both models on the same documents", " and ".join(differences)
    if np.array_equal(base.doc_ids[:shorter], candidate.doc_ids[:shorter]):
        text += (
            f"; one run stops where the other goes on ({base.n:,} and {candidate.n:,} documents)"
        )
        hint = _RUN_HINTS["limit"]
    return [Mismatch(text, hint)]


def _weight_mismatches(base: ScoreTable, candidate: ScoreTable) -> list[Mismatch]:
    if base.weights is None or candidate.weights is None:
        return []
    both_nan = np.isnan(base.weights) & np.isnan(candidate.weights)
    differs = (base.weights != candidate.weights) & ~both_nan
    if not bool(np.any(differs)):
        return []
    first = int(np.argmax(differs))
    return [
        Mismatch(
            f"weights (words or bytes) differ in {int(np.sum(differs)):,} of {base.n:,} documents "
            f"(first: doc_id {base.doc_ids[first]}, {base.weights[first]:g} and "
            f"{candidate.weights[first]:g})"
        )
    ]


def _cluster_mismatches(base: ScoreTable, candidate: ScoreTable) -> list[Mismatch]:
    if base.clusters == candidate.clusters:
        return []
    if not (base.clusters and candidate.clusters):
        return [Mismatch("only one side says which documents belong together (clusters)")]
    pairs = zip(base.clusters, candidate.clusters, strict=True)
    differing = [row for row, (ours, theirs) in enumerate(pairs) if ours != theirs]
    return [
        Mismatch(
            f"clusters differ in {len(differing):,} of {base.n:,} documents "
            f"(first: doc_id {base.doc_ids[differing[0]]})"
        )
    ]
