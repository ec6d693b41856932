"""Groups of a stored lm-eval run: what its results file says they aggregate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.task_group import GroupMetric, TaskGroup
from evalguard.harness.finished_runs.results_file import Results

_SAME = 1e-9


def stored_groups(
    results: Results, tables: Sequence[ScoreTable], names: Sequence[str]
) -> tuple[tuple[TaskGroup, ...], tuple[NotCompared, ...]]:
    """Return the groups that were asked for, those inside them too, and what is left out.

    lm-eval stores a group's values and subtasks, and not how they are weighted: that is seen from
    the values.

    Args:
        tables: of the tasks that were read.
        names: what was asked for (groups, tasks, wildcards); empty: everything.
    """
    children = _children(results)
    sizes = _sizes(results, tables)
    groups: list[TaskGroup] = []
    left_out: list[NotCompared] = []
    for name in _requested_tasks(children, names):
        tasks, inner = _below(name, children)
        unread = [task for task in tasks if task not in sizes]
        if unread:
            reason = (
                f"no samples of {len(unread)} of its {len(tasks)} subtasks (first: {unread[0]})"
            )
            left_out += _unusable(results, name, reason)
            continue
        counted = _counted(name, children)
        metrics, odd = _metrics(results, name, counted, sizes)
        left_out += odd
        groups.append(
            TaskGroup(
                name=name,
                children=children[name],
                tasks=tasks,
                groups=inner,
                metrics=metrics,
                counted=counted if len(counted) > len(tasks) else (),
            )
        )
    return tuple(groups), tuple(left_out)


def _children(results: Results) -> dict[str, tuple[str, ...]]:
    """Direct children of every group; older versions list tasks there too, with none."""
    listed = results.content.get("group_subtasks") or {}
    return {name: tuple(map(str, inner)) for name, inner in listed.items() if inner}


def _sizes(results: Results, tables: Sequence[ScoreTable]) -> dict[str, int]:
    """Documents of each task that was read, as lm-eval counts them in its groups."""
    sizes: dict[str, int] = {}
    for table in tables:
        sizes[table.task] = max(table.n, sizes.get(table.task, 0))
    counts = results.content.get("n-samples") or {}
    for task in sizes:
        effective = (counts.get(task) or {}).get("effective")
        sizes[task] = effective if isinstance(effective, int) else sizes[task]
    return sizes


def _requested_tasks(children: Mapping[str, tuple[str, ...]], names: Sequence[str]) -> list[str]:
    if not names:
        return list(children)
    asked: dict[str, None] = {}
    for group in children:
        if any(group == name or fnmatchcase(group, name) for name in names):
            asked[group] = None
            asked.update(dict.fromkeys(_below(group, children)[1]))
    return list(asked)


def _below(
    name: str, children: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leaf tasks and groups below a group, each once."""
    tasks: dict[str, None] = {}
    groups: dict[str, None] = {}
    waiting = list(children[name])
    while waiting:
        current = waiting.pop(0)
        if current not in children:
            tasks[current] = None
        elif current not in groups and current != name:  # a group may contain itself
            groups[current] = None
            waiting[:0] = children[current]
    return tuple(tasks), tuple(groups)


def _counted(
    name: str, children: Mapping[str, tuple[str, ...]], above: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Leaf tasks below a group, each as often as it stands there."""
    if name not in children:
        return (name,)
    if name in above:  # a group may contain itself
        return ()
    return tuple(
        task for child in children[name] for task in _counted(child, children, above | {name})
    )


def _metrics(
    results: Results, name: str, counted: Sequence[str], sizes: Mapping[str, int]
) -> tuple[tuple[GroupMetric, ...], list[NotCompared]]:
    found, odd = [], []
    for metric, filter_name in results.metrics(name):
        reported, _ = results.reported(name, metric, filter_name)
        values = [(task, results.reported(task, metric, filter_name)[0]) for task in counted]
        known = [(value, sizes[task]) for task, value in values if not math.isnan(value)]
        fitting = [
            by_size
            for by_size in (True, False)
            if known and math.isclose(_mean(known, by_size), reported, rel_tol=_SAME)
        ]
        if fitting:
            by_size = fitting[0] if len(fitting) == 1 else None
            found.append(GroupMetric(metric=metric, filters=(filter_name,), weight_by_size=by_size))
        else:
            reason = (
                "its reported value is not a mean of its subtasks', weighted by documents or not"
            )
            odd.append(NotCompared(task=name, filter=filter_name, metric=metric, reason=reason))
    return tuple(found), odd


def _mean(values: Sequence[tuple[float, int]], by_size: bool) -> float:
    """Mean of (value, documents), weighted by documents or not."""
    weights = [size if by_size else 1 for _, size in values]
    total = sum(weight * value for weight, (value, _) in zip(weights, values, strict=True))
    return total / sum(weights)


def _unusable(results: Results, name: str, reason: str) -> Iterator[NotCompared]:
    for metric, filter_name in results.metrics(name):
        yield NotCompared(task=name, filter=filter_name, metric=metric, reason=reason)
