"""What a task declares about its metrics: how documents combine, and which way is better."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lm_eval.api.task import Task


def aggregation_name(task: Task, metric: str) -> tuple[str, str]:
    """Return lm-eval's name of a metric's aggregation, and a caveat or "".

    A function that is none of lm-eval's (nor numpy's or the standard library's mean) goes by its
    own name.
    """
    declared = task.aggregation()
    if metric not in declared:
        return "mean", "no aggregation declared: mean, as lm-eval takes it"
    function = declared[metric]
    for name, known in _known_aggregations():
        if function is known:
            return name, ""
    return getattr(function, "__name__", type(function).__name__), ""


def direction(task: Task, metric: str) -> bool | None:
    """Return whether higher is better: the task's word, else lm-eval's registry, else None."""
    from lm_eval.api.registry import HIGHER_IS_BETTER_REGISTRY

    declared = task.higher_is_better().get(metric)
    if declared is None and metric in HIGHER_IS_BETTER_REGISTRY:
        declared = HIGHER_IS_BETTER_REGISTRY[metric]
    return None if declared is None else bool(declared)


def _known_aggregations() -> list[tuple[str, Any]]:
    from lm_eval.api.registry import AGGREGATION_REGISTRY

    means = [("mean", np.mean), ("mean", statistics.mean), ("mean", statistics.fmean)]
    return [*AGGREGATION_REGISTRY.items(), *means, ("nanmean", np.nanmean)]
