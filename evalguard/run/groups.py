"""Groups of tasks: their aggregates stand among the comparisons, above their subtasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared
from evalguard.core.task_group import TaskGroup
from evalguard.stats.group import Subtask, compare_group, failed_group
from evalguard.stats.judgement import MetricComparison

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
        (one.comparison.task, one.comparison.metric, name)
        for one in compared
        for name in (one.comparison.filter, None)
    }
    found: dict[tuple[str, str, str], None] = {}
    for group in (*sides[0], *sides[1]):
        for entry in group.metrics:
            for name in entry.filters or (None,):
                if not any((task, entry.metric, name) in having for task in group.tasks):
                    found[group.name, name or "", entry.metric] = None
    reason = "the group aggregates it, and none of its subtasks has it"
    return tuple(
        NotCompared(task=task, filter=name, metric=metric, reason=reason)
        for task, name, metric in found
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
        for one in compared:
            task = one.comparison.task
            sizes[task] = max(one.comparison.n, sizes.get(task, 0))
        by_key = {
            (one.comparison.task, one.comparison.filter, one.comparison.metric): one
            for one in compared
        }
        missing = {(left.task, left.filter, left.metric): left.reason for left in left_out}
        return cls(by_key, sizes, missing)

    def plan(self, group: TaskGroup) -> dict[tuple[str, str], bool | None]:
        """(filter, metric) -> whether weighted by size, for what the subtasks have."""
        found: dict[tuple[str, str], bool | None] = {}
        for entry in group.metrics:
            filters = entry.filters
            if filters is None:
                filters = tuple(sorted(self._filters(group, entry.metric)))
            found.update({(name, entry.metric): entry.weight_by_size for name in filters})
        return found

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
    found = [subtasks.by_key[part].comparison for part in parts if part in subtasks.by_key]
    reasons |= {c.task: c.reason for c in found if c.outcome == "failed"}
    if reasons:
        first = next(iter(reasons))
        return (
            f"{len(reasons)} of {len(parts)} subtasks gave no number (first: {first}: "
            f"{reasons[first]})"
        )
    if len({c.higher_is_better for c in found}) > 1:
        return "its subtasks do not agree on whether higher is better"
    return ""


def _order_groups(
    compared: Sequence[MetricComparison],
    groups: Mapping[str, TaskGroup],
    aggregates: Mapping[str, Sequence[MetricComparison]],
) -> Iterator[MetricComparison]:
    """Each group, then the groups inside it and its tasks; everything once."""
    by_task: dict[str, list[MetricComparison]] = {}
    for one in compared:
        by_task.setdefault(one.comparison.task, []).append(one)
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
