"""Align two score tables, or refuse with everything that forbids it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scores import Mismatch, Names, ScoreTable, names_of, refuse_if_any
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError, UsageError, nearest

ALLOWED = frozenset({"prompt", "tokens", "length", "reading"})

_RUN_HINTS = {
    "rolling_bos": "read whole texts alike: --rolling-bos with the value of the stored run",
    "limit": "run both with the same --limit",
}

# Fields that name the metric itself: where they differ, the tables are about different things.
_IDENTITY = ("task", "filter", "metric", "aggregation", "higher_is_better")


def pair(
    base: ScoreTable, candidate: ScoreTable, *, allow: frozenset[str] = frozenset()
) -> PairedScores:
    """Align two score tables, or refuse.

    Tables that are not in ascending doc_id are sorted first. Token ids that a run does not show
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
    return PairedScores(base=base, candidate=candidate, allow=allow, caveats=tuple(caveats))


def pair_rows(
    ours: Iterable[Mapping[str, Value]], theirs: Iterable[Mapping[str, Value]]
) -> Iterator[tuple[Mapping[str, Value], Mapping[str, Value]]]:
    """Pair rows of documents by their doc_id, in the order of ``ours``; others are left out.

    For sentences about what both sides answered: scores are aligned by ``pair``, which refuses.
    """
    others = {row["doc_id"]: row for row in theirs}
    for row in ours:
        if row["doc_id"] in others:
            yield row, others[row["doc_id"]]


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
        if base.run[key] != candidate.run[key]
    ]


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


# Agreement of two runs on lm-eval's hashes and on the token ids that were fed.


_SHOWN_DIGITS = 12
_UNKNOWN_HINT = (
    "without these hashes it cannot be known whether both answered the same documents: make that "
    "run once more"
)


_MAY_DIFFER = "so that the token ids, which are not shown, may differ"
_PROMPTS_MAY_DIFFER = (
    "so that prompts may have been built or cut otherwise, and their token ids are not shown"
)
_IF_KNOWN = "declare that both read the same tokens: --allow-differing tokens"
# Which examples stand in a prompt; a declared difference of prompts does not cover it.
_SHOTS = ("num_fewshot", "fewshot_seed")
_TEMPLATES = {"chat_template": "chat template", "system_instruction": "system instruction"}
_READING_HINTS = {
    "prefix_token": "give both the same tokenizer",
    "max_length": "give both the same max_length",
    "rolling_bos": "leave out --rolling-bos once",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of hash, known for both tables.

    Attributes:
        noun: what it is called.
        permission: the item of ``allow`` that lets it differ; "": none does.
        required: whether a hash that a run does not show forbids pairing.
        follows: whether another document, target or prompt changes it too, which then says enough.
    """

    noun: str
    permission: str
    base: tuple[str, ...]
    candidate: tuple[str, ...]
    required: bool = True
    follows: bool = False

    @property
    def unknown(self) -> int:
        """Documents whose hash either run does not show."""
        if all(self.base) and all(self.candidate):
            return 0
        pairs = zip(self.base, self.candidate, strict=True)
        return sum(not (one and other) for one, other in pairs)

    def differing(self) -> NDArray[np.bool_]:
        """Where both hashes are known and not the same; shape (n,)."""
        if self.base == self.candidate:
            return np.zeros(len(self.base), dtype=np.bool_)
        pairs = zip(self.base, self.candidate, strict=True)
        return np.array([bool(one and other and one != other) for one, other in pairs], dtype=bool)


def compare_hashes(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> tuple[list[Mismatch], list[str]]:
    """Compare all hashes of two tables with the same doc_ids.

    Returns:
        The mismatches, and the caveats: what differs as declared, what could not be compared.
    """
    mismatches, caveats = _compare_readings(base, candidate, allow)
    explained = np.zeros(base.n, dtype=np.bool_)
    for kind in _kinds(base, candidate):
        if kind.unknown:
            unknown = _not_compared(kind, base, candidate)
            if kind.required and kind.permission not in allow:
                mismatches.append(Mismatch(unknown, _UNKNOWN_HINT))
            else:
                caveats.append(unknown)
        differs = kind.differing()
        if kind.follows:
            differs &= ~explained
        else:
            explained |= differs
        if kind.permission == "tokens" and "length" in allow - {"tokens"}:
            differs, caveat = _without_cut_documents(differs, base, candidate)
            caveats += caveat
        if not bool(np.any(differs)):
            continue
        count = f"{kind.noun} differ in {int(np.sum(differs)):,} of {base.n:,} documents"
        one_sided = _bos_of_one_side(base, candidate) if kind.permission == "tokens" else ""
        if kind.permission in allow:
            tail = "" if kind.follows else "; their token ids are not compared"
            caveats.append(f"{count}, as declared{tail}{one_sided}")
            continue
        first = int(np.argmax(differs))
        if kind.permission != "prompt":
            mismatches.append(_mismatch(kind, base, first, count + one_sided))
            continue
        found = _mismatch(kind, base, first, count + _prompt_cause(base, candidate))
        known = (key for key in _SHOTS if key in base.run and key in candidate.run)
        shots = any(base.run[key] != candidate.run[key] for key in known)
        mismatches.append(replace(found, hint="") if shots else found)
    return mismatches, caveats


def _prompt_cause(base: ScoreTable, candidate: ScoreTable) -> str:
    """Say which templates of two finished runs differ, as far as they record them."""
    ours, theirs = base.reading or {}, candidate.reading or {}
    if not (ours.get("finished") and theirs.get("finished")):
        return ""
    names, found = names_of(base, candidate), []
    for key, noun in _TEMPLATES.items():
        one, other = ours.get(key), theirs.get(key)
        if one and other and one != other:
            found.append(f"another {noun} on each side")
        elif one != other:
            found.append(f"a {noun} in {names[0 if one else 1]} only")
    return f" ({', '.join(found)})" if found else ""


def _compare_readings(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> tuple[list[Mismatch], list[str]]:
    """Compare what token ids follow from, where a side does not show them.

    A setting under test ("tokens") brings other arguments, and no other lm-eval: that has to be
    declared ("reading"). Of generated texts too: versions build and cut prompts differently.
    """
    shown = bool(base.token_hashes and candidate.token_hashes)
    if shown or (base.reading is None and candidate.reading is None):
        return [], []
    may_differ = _PROMPTS_MAY_DIFFER if _is_generated(base, candidate) else _MAY_DIFFER
    mismatches: list[Mismatch] = []
    caveats: list[str] = []
    for found, permissions, hint in _reading_differences(base, candidate):
        if permissions & allow:
            caveats.append(f"{found}, as declared")
        else:
            mismatches.append(Mismatch(f"{found}, {may_differ}", f"{hint}, or {_IF_KNOWN}"))
    return mismatches, caveats


def _is_generated(base: ScoreTable, candidate: ScoreTable) -> bool:
    return "generate_until" in (base.run.get("output_type"), candidate.run.get("output_type"))


def _reading_differences(
    base: ScoreTable, candidate: ScoreTable
) -> list[tuple[str, frozenset[str], str]]:
    """(what differs, the permissions that let it, what to do) of two readings."""
    ours, theirs = base.reading or {}, candidate.reading or {}
    names = names_of(base, candidate)
    found = []
    one, other = (str(side.get("lm_eval") or "") for side in (ours, theirs))
    if not one or one != other:
        text = _of_both("the version of lm-eval", one, other, names, "not recorded")
        newest = max(one, other, key=_version) or "one version"
        again = f"run lm_eval again with {newest} on both sides"
        found.append((text, frozenset({"reading"}), again))
    if not (ours.get("finished") or theirs.get("finished")):
        return found  # what two models were told to read alike, each in its own words
    generated = _is_generated(base, candidate)
    for key in ("add_bos_token",) if generated else ("add_bos_token", "prefix_token_id"):
        one, other = (str(side.get(key, "")).lower() for side in (ours, theirs))
        if one != other:
            text = _of_both(key, one, other, names, "not given")
            found.append((text, frozenset({"tokens", "reading"}), "give both the same"))
    rolling = base.run.get("output_type") == "loglikelihood_rolling"
    for key, hint in () if generated else _READING_HINTS.items():
        one, other = (str(side.get(key, "")) for side in (ours, theirs))
        if one and other and one != other and (rolling or key == "prefix_token"):
            permission = "length" if key == "max_length" else "tokens"
            text = _of_both(key, one, other, names, "")
            found.append((text, frozenset({permission, "reading"}), hint))
    return found


def _of_both(noun: str, one: str, other: str, names: tuple[str, str], absent: str) -> str:
    """Say a value of both sides, or that neither has one."""
    if not one and not other:
        return f"{noun} is {absent} in {names[0]} and {names[1]}"
    return f"{noun} is {one or absent} in {names[0]} and {other or absent} in {names[1]}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _without_cut_documents(
    differs: NDArray[np.bool_], base: ScoreTable, candidate: ScoreTable
) -> tuple[NDArray[np.bool_], list[str]]:
    """Excuse the documents that either side's context length cuts; say how many these are."""
    cut = np.zeros(base.n, dtype=np.bool_)
    for table in (base, candidate):
        if table.cut:
            cut |= np.array(table.cut, dtype=np.bool_)
    excused = int(np.sum(differs & cut))
    if not excused:
        return differs, []
    return differs & ~cut, [
        f"token ids differ in {excused:,} of {base.n:,} documents that do not fit a context "
        "length under test"
    ]


def _kinds(base: ScoreTable, candidate: ScoreTable) -> list[_Kind]:
    """All kinds of hash, first those that others follow from."""
    unknown = ("",) * base.n
    kinds = [
        _Kind("documents (doc_hash)", "", base.doc_hashes, candidate.doc_hashes),
        _Kind("targets (target_hash)", "", base.target_hashes, candidate.target_hashes),
        _Kind("prompts (prompt_hash)", "prompt", base.prompt_hashes, candidate.prompt_hashes),
    ]
    if base.asked_hashes and candidate.asked_hashes:
        ours, theirs = base.asked_hashes, candidate.asked_hashes
        noun = "requests (prompts with what is scored after them)"
        kinds.append(_Kind(noun, "prompt", ours, theirs, required=False, follows=True))
    ours, theirs = base.token_hashes or unknown, candidate.token_hashes or unknown
    kinds.append(_Kind("token ids", "tokens", ours, theirs, required=False, follows=True))
    return kinds


def _mismatch(kind: _Kind, base: ScoreTable, first: int, count: str) -> Mismatch:
    ours, theirs = (side[first][:_SHOWN_DIGITS] for side in (kind.base, kind.candidate))
    found = f"{count} (first: doc_id {base.doc_ids[first]}, {ours} and {theirs})"
    if not kind.permission:
        return Mismatch(found, "these are not the same documents: check the task's data")
    return Mismatch(
        found,
        f"if this difference is under test, declare it: --allow-differing {kind.permission}, or "
        f"differs: [{kind.permission}] on the pair",
    )


def _bos_of_one_side(base: ScoreTable, candidate: ScoreTable) -> str:
    """Where lm-eval's way with whole texts makes a BOS that one side lacks look like a drift."""
    counting = [table.run.get("rolling_bos") == "lm-eval" for table in (base, candidate)]
    if sum(counting) != 1:
        return ""
    name = names_of(base, candidate)[counting.index(True)]
    return (
        f"; in whole texts only {name} counts the likelihood of BOS given BOS, which alone looks "
        "like a drift (--rolling-bos once leaves it out)"
    )


def _not_compared(kind: _Kind, base: ScoreTable, candidate: ScoreTable) -> str:
    silent = [
        name
        for name, side in zip(names_of(base, candidate), (kind.base, kind.candidate), strict=True)
        if not all(side)
    ]
    verb = "does" if len(silent) == 1 else "do"
    return (
        f"{kind.noun} not compared in {kind.unknown:,} of {base.n:,} documents: "
        f"{' and '.join(silent)} {verb} not show them"
    )


# PairedScores: two aligned score tables.


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


# Rows of a score table: checked, sorted, picked.


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
            f"{table.task} ({table.filter}) {table.metric}: {name} has {repeated.size:,} repeated "
            f"doc_ids (first: {table.doc_ids[repeated[0]]})",
            hint="average repeated runs of a document before they are paired",
        )
    return table


def pick_rows(table: ScoreTable, rows: NDArray[np.int64]) -> ScoreTable:
    """Return the table's rows at these positions, in this order."""

    def pick(fields: tuple[_Field, ...]) -> tuple[_Field, ...]:
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
    for field in ("doc_hashes", "prompt_hashes", "target_hashes"):
        if len(getattr(table, field)) != n:
            problems.append(f"{len(getattr(table, field))} {field}")
    for field in ("asked_hashes", "token_hashes", "answers", "clusters", "cut"):
        if len(getattr(table, field)) not in (0, n):
            problems.append(f"{len(getattr(table, field))} {field}")
    if (table.weights is not None) != (table.aggregation in _WEIGHTED):
        found = "no weights" if table.weights is None else "weights, which have no use"
        problems.append(f"{found} for {table.aggregation}")
    if problems:
        raise MisalignedRunsError(
            f"{table.task} ({table.filter}) {table.metric}: {name} has a malformed score table of "
            f"{n:,} documents with {', '.join(problems)}"
        )
