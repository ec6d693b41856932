"""From the score tables of two runs to comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalguard.comparison.draws import Stops
from evalguard.core.broken_documents import BrokenDocument, broken_ids
from evalguard.core.comparison import Comparison
from evalguard.core.figures import why_unknown
from evalguard.core.findings import Quote
from evalguard.core.gate import Gate
from evalguard.core.pairing import PairedScores, finite_rows, pair
from evalguard.core.scores import UNDIRECTED, NotCompared, ScoreTable, TaskGroup
from evalguard.engine.fairness import OtherPrompts
from evalguard.errors import EvalguardError, EvaluationError, MisalignedRunsError, UsageError
from evalguard.stats.caveats import documents_of_task
from evalguard.stats.compare_scores import compare_documents, failed_comparison
from evalguard.stats.group import Subtask, compare_group, failed_group
from evalguard.stats.judgement import MetricComparison
from evalguard.stats.uninformative import nothing_known

SubtaskKey = tuple[str, str, str]
TaskGroups = Sequence[TaskGroup]


def add_aggregates(
    compared: Sequence[MetricComparison],
    sides: tuple[TaskGroups, TaskGroups],
    *,
    left_out: Sequence[NotCompared],
    gate: Gate,
) -> tuple[MetricComparison, ...]:
    """Add the aggregates of groups to the comparisons of their subtasks, and put them first.

    Args:
        sides: groups of base and candidate; one side suffices.
        left_out: metrics of either side that were not compared: their groups have no number.
    """
    named = [{group.name: group for group in side} for side in sides]
    groups = {name: group for side in reversed(named) for name, group in side.items()}
    if not groups:
        return tuple(compared)
    subtasks = _Subtasks.of(compared, left_out)
    aggregates: dict[str, list[MetricComparison]] = {}
    for name in groups:
        both = [side[name] for side in named if name in side]
        aggregates[name] = list(_group_aggregates(both, subtasks, gate))
    return tuple(_order_groups(compared, groups, aggregates))


def list_missing_aggregates(
    compared: Sequence[MetricComparison], sides: tuple[TaskGroups, TaskGroups]
) -> tuple[NotCompared, ...]:
    """What groups say they aggregate, and none of their subtasks has; lm-eval has no number."""
    having = {
        (metric.comparison.task, metric.comparison.metric, name)
        for metric in compared
        for name in (metric.comparison.filter, None)
    }
    missing: dict[tuple[str, str, str], None] = {}
    for group in (*sides[0], *sides[1]):
        for entry in group.metrics:
            for name in entry.filters or (None,):
                if not any((task, entry.metric, name) in having for task in group.tasks):
                    missing[group.name, name or "", entry.metric] = None
    reason = "the group aggregates it, and none of its subtasks has it"
    return tuple(
        NotCompared(task=task, filter=name, metric=metric, reason=reason)
        for task, name, metric in missing
    )


@dataclass(frozen=True, slots=True)
class _Subtasks:
    """Comparisons by key, documents by task, and why some metrics have no comparison."""

    by_key: Mapping[SubtaskKey, MetricComparison]
    sizes: Mapping[str, int]
    missing: Mapping[SubtaskKey, str]

    @classmethod
    def of(cls, compared: Sequence[MetricComparison], left_out: Sequence[NotCompared]) -> _Subtasks:
        sizes: dict[str, int] = {}
        for metric in compared:
            task = metric.comparison.task
            sizes[task] = max(metric.comparison.n, sizes.get(task, 0))
        by_key = {
            (metric.comparison.task, metric.comparison.filter, metric.comparison.metric): metric
            for metric in compared
        }
        missing = {
            (omitted.task, omitted.filter, omitted.metric): omitted.reason for omitted in left_out
        }
        return cls(by_key, sizes, missing)

    def plan(self, group: TaskGroup) -> dict[tuple[str, str], bool | None]:
        """(filter, metric) -> whether weighted by size, for what the subtasks have."""
        weighting: dict[tuple[str, str], bool | None] = {}
        for entry in group.metrics:
            filters = entry.filters
            if filters is None:
                filters = tuple(sorted(self._filters(group, entry.metric)))
            weighting.update({(name, entry.metric): entry.weight_by_size for name in filters})
        return weighting

    def _filters(self, group: TaskGroup, metric: str) -> set[str]:
        keys = (*self.by_key, *self.missing)
        return {name for task, name, of in keys if of == metric and task in group.tasks}


def _group_aggregates(
    both: TaskGroups, subtasks: _Subtasks, gate: Gate
) -> Iterator[MetricComparison]:
    """The aggregates of a group, which one side or both declare."""
    group = both[0]
    plans = [subtasks.plan(side) for side in both]
    alike = len({tuple(sorted(side.counted or side.tasks)) for side in both}) == 1
    equal = len({subtasks.sizes.get(task) for task in group.tasks}) == 1
    for filter_name, metric in dict.fromkeys(key for plan in plans for key in plan):
        key = (group.name, filter_name, metric)
        weights = {plan.get((filter_name, metric)) for plan in plans} - {None}
        parts = [(task, filter_name, metric) for task in group.tasks]
        if not any(part in subtasks.by_key or part in subtasks.missing for part in parts):
            continue
        reason = _aggregate_problem(parts, subtasks)
        if not alike:
            reason = "base and candidate have different subtasks in this group"
        elif len(weights) > 1 and not equal:
            reason = "base and candidate weight its subtasks differently"
        if reason:
            yield failed_group(group, key, reason, gate.confidence)
            continue
        # where neither side's values tell, lm-eval's default
        yield _build_aggregate(group, parts, subtasks, False not in weights, gate)


def _build_aggregate(
    group: TaskGroup, parts: Sequence[SubtaskKey], subtasks: _Subtasks, by_size: bool, gate: Gate
) -> MetricComparison:
    having = [part for part in parts if part in subtasks.by_key]
    made = compare_group(
        group,
        [
            Subtask(
                compared=subtasks.by_key[part],
                size=subtasks.sizes[part[0]],
                times=group.times(part[0]),
            )
            for part in having
        ],
        weight_by_size=by_size,
        margin=gate.margin_of(group.name, parts[0][2]),
        confidence=gate.confidence,
        gated=gate.covers(group.name, *parts[0][1:]),
    )
    lacking = len(parts) - len(having)
    if not lacking:
        return made
    verb = "does not have this metric, and is" if lacking == 1 else "do not have it, and are"
    caveat = f"{lacking} of {len(parts)} subtasks {verb} left out of the aggregate"
    caveats = (*made.comparison.caveats, caveat)
    return replace(made, comparison=replace(made.comparison, caveats=caveats))


def _aggregate_problem(parts: Sequence[SubtaskKey], subtasks: _Subtasks) -> str:
    """Why these subtasks give no aggregate, or ""."""
    reasons = {part[0]: subtasks.missing[part] for part in parts if part in subtasks.missing}
    comparisons = [subtasks.by_key[part].comparison for part in parts if part in subtasks.by_key]
    reasons |= {c.task: c.reason for c in comparisons if c.outcome == "failed"}
    if reasons:
        first = next(iter(reasons))
        return (
            f"{len(reasons)} of {len(parts)} subtasks gave no number (first: {first}: "
            f"{reasons[first]})"
        )
    if len({c.higher_is_better for c in comparisons}) > 1:
        return "its subtasks do not agree on whether higher is better"
    return ""


def _order_groups(
    compared: Sequence[MetricComparison],
    groups: Mapping[str, TaskGroup],
    aggregates: Mapping[str, Sequence[MetricComparison]],
) -> Iterator[MetricComparison]:
    """Each group, then the groups inside it and its tasks; everything once."""
    by_task: dict[str, list[MetricComparison]] = {}
    for metric in compared:
        by_task.setdefault(metric.comparison.task, []).append(metric)
    inner = {name for group in groups.values() for name in group.groups}
    outermost = [name for name in groups if name not in inner] or list(groups)
    done: set[str] = set()

    def emit(name: str) -> Iterator[MetricComparison]:
        if name in done:
            return
        done.add(name)
        yield from aggregates.get(name, ())
        yield from by_task.get(name, ())
        for child in groups[name].children if name in groups else ():
            yield from emit(child)

    for task in by_task:
        holder = next((name for name in outermost if task in groups[name].tasks), task)
        yield from emit(holder)
        yield from emit(task)
    for name in outermost:
        yield from emit(name)


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
    return tuple(metric.comparison for metric in compared)


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
    other_prompts = prompts or {}
    return tuple(
        _compare_key(key, bases, candidates, gate, allow, stops, broken, other_prompts.get(key[0]))
        for key in keys
    )


def split_comparable(
    compared: Sequence[MetricComparison],
) -> tuple[tuple[MetricComparison, ...], tuple[NotCompared, ...]]:
    """Part what was compared from metrics that have no number on these documents on either side."""
    left_out = tuple(
        NotCompared(
            task=metric.comparison.task,
            filter=metric.comparison.filter,
            metric=metric.comparison.metric,
            reason=metric.not_compared,
        )
        for metric in compared
        if metric.not_compared
    )
    return tuple(metric for metric in compared if not metric.not_compared), left_out


def drop_incomparable(
    tables: Sequence[ScoreTable], left_out: Sequence[NotCompared]
) -> tuple[ScoreTable, ...]:
    """Leave out metrics that are no mean and that the other side could not read, with its reason.

    A stored run does not hold a task's own aggregation, while a model beside it is scored by it.
    """
    unread = {(omitted.task, omitted.filter, omitted.metric) for omitted in left_out}
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
    base, candidate = _with_direction(
        *_with_side_caveats(bases[key], candidates[key]), gate.direction_of(key[0], key[2])
    )
    try:
        paired = pair(base, candidate, allow=allow)
    except MisalignedRunsError as error:
        how = prompts if error.of_prompts else None
        return _failed_comparison(base, _error_reason(error, how), how.quotes if how else ())
    if base.figure and not paired.base.n:
        failed = _failed_comparison(base, _unknown_figure(base, candidate))
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
