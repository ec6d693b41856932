"""TaskGroup: an lm-eval group whose metrics are aggregates of its subtasks'."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetric:
    """An entry of a group's ``aggregate_metric_list``.

    ``filters`` None stands for every filter under which a subtask has the metric.
    ``weight_by_size`` False counts every subtask alike, however many documents it has; None where
    that is not known, because a finished run's value is the same either way.
    """

    metric: str
    filters: tuple[str, ...] | None = None
    weight_by_size: bool | None = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGroup:
    """A group that was asked for, or one inside it.

    Attributes:
        children: direct subtasks and subgroups, in lm-eval's order.
        tasks: all leaf tasks below, each once; ``groups`` all groups below.
        counted: leaf tasks as often as lm-eval counts them, where it counts one more than once
            (a task that stands in the group and in a group inside it); () where it does not.
        metrics: what is aggregated; () for a group that is a mere list of tasks.
    """

    name: str
    children: tuple[str, ...]
    tasks: tuple[str, ...]
    groups: tuple[str, ...] = ()
    metrics: tuple[GroupMetric, ...] = ()
    counted: tuple[str, ...] = ()

    def times(self, task: str) -> int:
        """How often lm-eval counts a leaf task in the aggregate."""
        return self.counted.count(task) or 1
