"""A task's aggregations that are no mean, to be run over any selection of its documents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evalguard.core.documents.rescoring import Rescoring, rescoring
from evalguard.core.score_items import (
    NotComparableError,
)
from evalguard.errors import EvaluationError
from evalguard.harness.surroundings import lm_eval_surroundings, task_code

if TYPE_CHECKING:
    from lm_eval.api.task import Task


# Seconds of one aggregation; a bootstrap runs it some 450 times.
LONGEST = 5.0


def task_rescoring(task: Task, metric: str, items: Sequence[object], name: str) -> Rescoring:
    """Rescore a metric's items by the aggregation that the task declares for it.

    Args:
        name: what the aggregation is called (``metrics.aggregation_name``).

    Raises:
        NotComparableError: if the aggregation fails on the items, or takes too long to be run for
            hundreds of resamples.
    """
    function = task.aggregation()[metric]

    def aggregate(chosen: list[object]) -> float:
        with task_code(f"aggregation '{name}'"):
            return float(function(chosen))

    try:
        made, seconds = _timed(items, name, aggregate)
        if seconds > LONGEST:  # the first call may have imported a library
            made, seconds = _timed(items, name, aggregate)
    except EvaluationError as error:
        raise NotComparableError(str(error), quotes=error.quotes) from error
    if seconds > LONGEST:
        raise NotComparableError(
            f"its aggregation '{name}' takes {seconds:.0f} seconds, too long for the hundreds of "
            "times that a paired bootstrap needs it"
        )
    return made


def _timed(
    items: Sequence[object], name: str, aggregate: Callable[[list[object]], float]
) -> tuple[Rescoring, float]:
    """A rescoring, and the seconds of one aggregation."""
    started = time.perf_counter()
    with lm_eval_surroundings():
        made = rescoring(items, name, aggregate)
    return made, time.perf_counter() - started
