"""lm-eval's groups as plain data: their subtasks, and which metrics are aggregated over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evalguard.core.task_group import GroupMetric, TaskGroup

if TYPE_CHECKING:
    from lm_eval.api.group import Group


def read_groups(groups: Mapping[str, Group]) -> tuple[TaskGroup, ...]:
    """Read the groups that lm-eval loaded, those inside others too."""
    return tuple(_group(group) for group in groups.values())


def _group(group: Group) -> TaskGroup:
    counted = tuple(str(task.task_name) for task in group.get_all_tasks())
    tasks = tuple(dict.fromkeys(counted))
    return TaskGroup(
        name=group.name,
        children=tuple(group.child_names),
        tasks=tasks,
        counted=() if counted == tasks else counted,
        groups=tuple(dict.fromkeys(inner.name for inner in group.get_all_groups())),
        metrics=tuple(_metric(entry) for entry in group.aggregate_metric_list or ()),
    )


def _metric(entry: Any) -> GroupMetric:
    filters = entry.filter_list
    return GroupMetric(
        metric=str(entry.metric),
        filters=None if filters is None else tuple(map(str, filters)),
        weight_by_size=bool(entry.weight_by_size),
    )
