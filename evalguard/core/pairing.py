"""Align two score tables, or refuse with everything that forbids it."""

from __future__ import annotations

import numpy as np

from evalguard.core.mismatch import Mismatch, Names, names_of, refuse_if_any
from evalguard.core.paired_scores import PairedScores
from evalguard.core.run_agreement import canonical_generation, compare_hashes
from evalguard.core.score_rows import finite_rows, order_rows, pick_rows
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import UsageError, nearest

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
    found = _run_mismatches(base, candidate, names)
    if not np.array_equal(base.doc_ids, candidate.doc_ids):
        found += _document_mismatches(base, candidate, names)
        # Only to say what else is wrong: the documents that both have.
        _, ours, theirs = np.intersect1d(
            base.doc_ids, candidate.doc_ids, assume_unique=True, return_indices=True
        )
        found += compare_hashes(pick_rows(base, ours), pick_rows(candidate, theirs), allow)[0]
        refuse_if_any(base, names, found)
    mismatches, caveats = compare_hashes(base, candidate, allow)
    mismatches += [*_weight_mismatches(base, candidate), *_cluster_mismatches(base, candidate)]
    refuse_if_any(base, names, [*found, *mismatches])
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
    found = []
    for one, other, name in ((base, candidate, names[0]), (candidate, base, names[1])):
        extra = np.setdiff1d(one.doc_ids, other.doc_ids, assume_unique=True)
        if extra.size:
            found.append(f"{extra.size:,} documents only in {name} (first: doc_id {extra[0]})")
    shorter = min(base.n, candidate.n)
    hint, text = "score both models on the same documents", " and ".join(found)
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
