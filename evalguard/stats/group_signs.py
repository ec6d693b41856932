"""What the signs of few documents grant to the aggregate of a group of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalguard.comparison import Comparison
from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.estimate import Estimate
from evalguard.stats.few_units import held_to_signs, held_to_swaps
from evalguard.stats.flip_units import flip_units
from evalguard.stats.moments import Array


def held_to_documents(
    estimate: Estimate,
    comparisons: Sequence[Comparison],
    weights: Sequence[float],
    parts: Sequence[TaskContributions],
) -> Estimate:
    """The stratified estimate, no surer than signs grant: see ``few_units``.

    What changes sign is a document in all subtasks that hold it, or a cluster. The interval takes
    away the same drift from every subtask.

    Args:
        comparisons, weights: of the subtasks; the weights sum to 1.
        parts: their documents, in the same order; () where a subtask's drift is no sum of them.
    """
    if not parts:
        units = sum(c.n_used if c.clusters is None else c.clusters for c in comparisons)
        return held_to_swaps(estimate, differing=units, units=units)
    shares = [
        replace(part, values=part.shares * weight)
        for part, weight in zip(parts, weights, strict=True)
    ]
    return held_to_signs(estimate, _per_unit(parts), _per_unit(shares), 1.0)


def _per_unit(parts: Sequence[TaskContributions]) -> Array:
    whole = Contributions(task="", filter="", metric="", unit=1.0, parts=tuple(parts))
    column: Array = flip_units([whole]).values[:, 0]
    return column
