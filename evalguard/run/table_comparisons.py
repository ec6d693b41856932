"""From the score tables of two runs to comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalguard.core.comparison import Comparison
from evalguard.core.documents.broken_documents import BrokenDocument
from evalguard.core.documents.broken_verdict import broken_ids
from evalguard.core.figure_names import why_unknown
from evalguard.core.gate import Gate
from evalguard.core.paired_scores import PairedScores
from evalguard.core.pairing import pair
from evalguard.core.reports.findings import Quote
from evalguard.core.score_rows import finite_rows
from evalguard.core.scores import UNDIRECTED, NotCompared, ScoreTable
from evalguard.errors import (
    EvalguardError,
    EvaluationError,
    MisalignedRunsError,
    UsageError,
)
from evalguard.run.sample_size.stops import Stops
from evalguard.run.scoring.prompt_differences import OtherPrompts
from evalguard.stats.answers.uninformative import nothing_known
from evalguard.stats.caveats import documents_of_task
from evalguard.stats.compare_scores import compare_documents, failed_comparison
from evalguard.stats.judgement import MetricComparison

TableKey = tuple[str, str, str]


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
    broken: Sequence[BrokenDocument] = (),
    prompts: Mapping[str, OtherPrompts] | None = None,
) -> tuple[MetricComparison, ...]:
    """Compare every (task, filter, metric) that either run has.

    What cannot be paired, or is there on one side only, becomes a failed comparison with its
    reason: it is neither dropped nor does it hide the others.

    Args:
        stops: where a sequential run stopped; the tables hold the documents asked until then.
        broken: documents that the gate judges by themselves: a metric is compared without those
            of them that have no finite score. Any other score that is not finite fails it.
        prompts: by task, how those of the two sides differ, to be said where that forbids pairing.
    """
    bases = {table.key: table for table in base}
    candidates = {table.key: table for table in candidate}
    keys = list(dict.fromkeys([*bases, *candidates]))
    other = prompts or {}
    return tuple(
        _compare_key(key, bases, candidates, gate, allow, stops, broken, other.get(key[0]))
        for key in keys
    )


def split_comparable(
    compared: Sequence[MetricComparison],
) -> tuple[tuple[MetricComparison, ...], tuple[NotCompared, ...]]:
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


def drop_incomparable(
    tables: Sequence[ScoreTable], left_out: Sequence[NotCompared]
) -> tuple[ScoreTable, ...]:
    """Leave out metrics that are no mean and that the other side could not read, with its reason.

    A stored run does not hold a task's own aggregation, while a model beside it is scored by it.
    """
    unread = {(left.task, left.filter, left.metric) for left in left_out}
    return tuple(table for table in tables if table.rescoring is None or table.key not in unread)


def _compare_key(
    key: TableKey,
    bases: Mapping[TableKey, ScoreTable],
    candidates: Mapping[TableKey, ScoreTable],
    gate: Gate,
    allow: frozenset[str],
    stops: Stops | None,
    broken: Sequence[BrokenDocument],
    prompts: OtherPrompts | None,
) -> MetricComparison:
    if key not in bases or key not in candidates:
        present, missing = ("candidate", "base") if key not in bases else ("base", "candidate")
        table = bases.get(key) or candidates[key]
        return _failed_comparison(table, f"only the {present} has this metric, not the {missing}")
    unknown = nothing_known(bases[key], candidates[key])
    if unknown is not None and not unknown.regression_stands:
        return _failed_comparison(bases[key], unknown.reason, unknown.quotes)
    base, other = _with_direction(
        *_with_side_caveats(bases[key], candidates[key]), gate.direction_of(key[0], key[2])
    )
    try:
        paired = pair(base, other, allow=allow)
    except MisalignedRunsError as error:
        how = prompts if error.of_prompts else None
        return _failed_comparison(base, _error_reason(error, how), how.quotes if how else ())
    if base.figure and not paired.base.n:
        failed = _failed_comparison(base, _unknown_figure(base, other))
        decides = gate.covers(*key)
        return failed if decides else replace(failed, not_compared=failed.comparison.reason)
    early = None if stops is None else stops.early(paired, gate.margin_of(key[0], key[2]))
    if early is not None:
        return MetricComparison(comparison=early, unless_regressed=unknown)
    try:
        compared = compare_documents(
            _without_broken(paired, broken),
            margin=gate.margin_of(key[0], key[2]),
            confidence=gate.confidence,
            gated=gate.covers(*key),
        )
    except EvaluationError as error:  # an aggregation that fails on a resample of the documents
        return _failed_comparison(base, _error_reason(error), error.quotes)
    compared = _with_count(compared, paired)
    if stops is not None:
        compared = replace(compared, comparison=stops.late(compared.comparison))
    return replace(compared, unless_regressed=unknown)


def _unknown_figure(base: ScoreTable, candidate: ScoreTable) -> str:
    """Why a figure of answers is known of no document of both sides."""
    known = [bool(np.isfinite(table.values).any()) for table in (base, candidate)]
    whose = "of the base" if known[1] else "of the candidate" if known[0] else "of either side"
    if all(known):
        return "it is known of no document on both sides"
    return f"it is known of no document {whose}: {why_unknown(base.metric)}"


def _without_broken(paired: PairedScores, broken: Sequence[BrokenDocument]) -> PairedScores:
    """The documents that have a finite score on both sides, if the others are known to be broken.

    A caveat says how many were left out.
    """
    finite = np.isfinite(paired.base.values) & np.isfinite(paired.candidate.values)
    lost = paired.base.doc_ids[~finite].tolist()
    known = broken_ids(broken, paired.base.task)
    if not lost or not all(doc_id in known for doc_id in lost):
        return paired
    if np.count_nonzero(finite) < 2:  # why there is no number is to be said of all of them
        return paired
    have = "document has" if len(lost) == 1 else "documents have"
    caveat = (
        f"{len(lost):,} broken {have} no finite score (first: {lost[0]}): these numbers are of the "
        "others"
    )
    base, candidate = (
        replace(side, n_total=max(side.n_total - len(lost), 0))
        for side in finite_rows(paired.base, paired.candidate)
    )
    return replace(paired, base=base, candidate=candidate, caveats=(*paired.caveats, caveat))


def _with_count(compared: MetricComparison, paired: PairedScores) -> MetricComparison:
    """The comparison with all documents that were scored as ``n``, the broken ones included."""
    comparison, n = compared.comparison, paired.base.n
    if comparison.n == n:
        return compared
    total = documents_of_task(paired) if comparison.n_total else 0
    return replace(compared, comparison=replace(comparison, n=n, n_total=total))


def _with_direction(
    base: ScoreTable, candidate: ScoreTable, stated: bool | None
) -> tuple[ScoreTable, ScoreTable]:
    """Give both sides one direction: that of the guard file, else the one that a side declares.

    Raises:
        UsageError: the guard file says otherwise than a task.
    """
    sides = (base, candidate)
    if all(table.directed for table in sides) and stated is None:
        return sides
    declared = {table.higher_is_better for table in sides if table.directed}
    if stated is not None and declared - {stated}:
        raise UsageError(
            f"gate: metrics: {base.metric}: higher_is_better: {str(stated).lower()} in the guard "
            f"file, and the task {base.task} declares the other direction",
            hint="leave it out: the task's own word counts",
        )
    higher = next(iter(declared), True) if stated is None else stated
    caveats = (UNDIRECTED,) if stated is None else ()
    base, candidate = (
        replace(
            table,
            higher_is_better=higher,
            directed=stated is not None,
            caveats=(*table.caveats, *caveats),
        )
        for table in sides
    )
    return base, candidate


def _failed_comparison(
    table: ScoreTable, reason: str, quotes: tuple[Quote, ...] = ()
) -> MetricComparison:
    return MetricComparison(comparison=replace(failed_comparison(table, reason), quotes=quotes))


def _error_reason(error: EvalguardError, prompts: OtherPrompts | None = None) -> str:
    """What a table says beside the metric's name."""
    message = error.what if isinstance(error, MisalignedRunsError) else str(error)
    how = (f"prompts: {prompts.text}", prompts.hint) if prompts and prompts.differences else ()
    return "; ".join(part for part in (message, *how, error.hint) if part)


def _with_side_caveats(base: ScoreTable, candidate: ScoreTable) -> tuple[ScoreTable, ScoreTable]:
    """Name the side in what only one of the two has to say."""
    shared = {*base.caveats, *base.provenance} & {*candidate.caveats, *candidate.provenance}
    return _name_side("base", base, shared), _name_side("candidate", candidate, shared)


def _name_side(role: str, table: ScoreTable, shared: set[str]) -> ScoreTable:
    def named(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(text if text in shared else f"{role}: {text}" for text in texts)

    return replace(table, caveats=named(table.caveats), provenance=named(table.provenance))
