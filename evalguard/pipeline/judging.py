"""From the score tables of two runs to comparisons and the gate's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from evalguard.comparison import Comparison
from evalguard.errors import EvalguardError, EvaluationError, MisalignedRunsError
from evalguard.gate import Gate
from evalguard.pairing import pair
from evalguard.pipeline.stops import Stops
from evalguard.scores import UNINFORMATIVE, NotCompared, ScoreTable
from evalguard.stats import Compared, compare_documents, failed_comparison

Key = tuple[str, str, str]


def compare_tables(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    *,
    gate: Gate,
    allow: frozenset[str] = frozenset(),
) -> tuple[Comparison, ...]:
    """Compare every (task, filter, metric) that either run has; see ``compare_by_document``."""
    compared = compare_by_document(base, candidate, gate=gate, allow=allow)
    return tuple(one.comparison for one in compared)


def compare_by_document(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    *,
    gate: Gate,
    allow: frozenset[str] = frozenset(),
    stops: Stops | None = None,
) -> tuple[Compared, ...]:
    """Compare every (task, filter, metric) that either run has.

    What cannot be paired, or is there on one side only, becomes a failed comparison with its
    reason: it is neither dropped nor does it hide the others.

    Args:
        stops: where a sequential run stopped; the tables hold the documents asked until then.
    """
    bases = {table.key: table for table in base}
    candidates = {table.key: table for table in candidate}
    keys = list(dict.fromkeys([*bases, *candidates]))
    return tuple(_compare(key, bases, candidates, gate, allow, stops) for key in keys)


def split_comparable(
    compared: Sequence[Compared],
) -> tuple[tuple[Compared, ...], tuple[NotCompared, ...]]:
    """Part what was compared from metrics that have no number on these documents on either side."""
    left_out = tuple(
        NotCompared(
            task=one.comparison.task,
            filter=one.comparison.filter,
            metric=one.comparison.metric,
            reason=one.not_compared,
        )
        for one in compared
        if one.not_compared
    )
    return tuple(one for one in compared if not one.not_compared), left_out


def comparable(
    tables: Sequence[ScoreTable], left_out: Sequence[NotCompared]
) -> tuple[ScoreTable, ...]:
    """Leave out metrics that are no mean and that the other side could not read, with its reason.

    A stored run does not hold a task's own aggregation, while a model beside it is scored by it.
    """
    unread = {(left.task, left.filter, left.metric) for left in left_out}
    return tuple(table for table in tables if table.rescoring is None or table.key not in unread)


def _compare(
    key: Key,
    bases: Mapping[Key, ScoreTable],
    candidates: Mapping[Key, ScoreTable],
    gate: Gate,
    allow: frozenset[str],
    stops: Stops | None,
) -> Compared:
    if key not in bases or key not in candidates:
        present, missing = ("candidate", "base") if key not in bases else ("base", "candidate")
        table = bases.get(key) or candidates[key]
        return _failed(table, f"only the {present} has this metric, not the {missing}")
    for caveat, hint in UNINFORMATIVE.items():
        if caveat in bases[key].caveats and caveat in candidates[key].caveats:
            return _failed(
                bases[key], f"of both models, {caveat}: there is nothing to compare; {hint}"
            )
    base, other = _told_apart(bases[key], candidates[key])
    try:
        paired = pair(base, other, allow=allow)
    except MisalignedRunsError as error:
        return _failed(base, _reason(error, key))
    early = None if stops is None else stops.early(paired, gate.margin_of(key[0], key[2]))
    if early is not None:
        return Compared(comparison=early)
    try:
        compared = compare_documents(
            paired,
            margin=gate.margin_of(key[0], key[2]),
            confidence=gate.confidence,
            gated=gate.covers(key[0], key[2]),
        )
    except EvaluationError as error:  # an aggregation that fails on a resample of the documents
        return _failed(base, _reason(error, key))
    return (
        compared if stops is None else replace(compared, comparison=stops.late(compared.comparison))
    )


def _failed(table: ScoreTable, reason: str) -> Compared:
    return Compared(comparison=failed_comparison(table, reason))


def _reason(error: EvalguardError, key: Key) -> str:
    """What a table says beside the metric's name, which the message begins with."""
    task, filter_name, metric = key
    message = str(error).removeprefix(f"{task} ({filter_name}) {metric}: ")
    return "; ".join(part for part in (message, error.hint) if part)


def _told_apart(base: ScoreTable, candidate: ScoreTable) -> tuple[ScoreTable, ScoreTable]:
    """Name the side in caveats that only one of the two has."""
    shared = set(base.caveats) & set(candidate.caveats)
    return _naming("base", base, shared), _naming("candidate", candidate, shared)


def _naming(role: str, table: ScoreTable, shared: set[str]) -> ScoreTable:
    named = (text if text in shared else f"{role}: {text}" for text in table.caveats)
    return replace(table, caveats=tuple(named))
