"""The strata of a group's drift: its subtasks, joined where they share documents.

Documents of different subtasks are independent, so that sum w_t D_t has the standard error
sqrt(sum w_t^2 SE_t^2), SE_t that of subtask t (cluster-robust where it has clusters). Subtasks
that ask about the same documents (one text in several templates) are not independent: they are
one stratum of units, each a document with all that it adds to any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalguard.core.comparison import Comparison
from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.flip_units import flip_units
from evalguard.stats.strata import Stratum

# Two aggregates of n numbers that are equal but for rounding are equal.
_ROUNDING = 1e-15


def number(value: float | None) -> float:
    """A comparison's number, NaN where it has none."""
    return math.nan if value is None else value


def subtask_strata(comparisons: Sequence[Comparison], weights: Sequence[float]) -> list[Stratum]:
    """One stratum for each subtask: its drift, positive where the candidate is worse."""
    sign = -1.0 if comparisons[0].higher_is_better else 1.0
    strata = [
        Stratum(
            point=weight * sign * (number(c.candidate) - number(c.base)),
            stderr=weight * number(c.paired_stderr),
            df=(c.n_used if c.clusters is None else c.clusters) - 1.0,
        )
        for c, weight in zip(comparisons, weights, strict=True)
    ]
    size = math.fsum(
        weight * (abs(number(c.candidate)) + abs(number(c.base)))
        for c, weight in zip(comparisons, weights, strict=True)
    )
    if abs(math.fsum(stratum.point for stratum in strata)) > _ROUNDING * size:
        return strata
    rest = math.fsum(stratum.point for stratum in strata[:-1])
    last = Stratum(point=-rest, stderr=strata[-1].stderr, df=strata[-1].df)
    return [*strata[:-1], last]


def joined_strata(
    strata: Sequence[Stratum], parts: Sequence[TaskContributions]
) -> tuple[list[Stratum], int]:
    """Join the strata of subtasks that share documents; also return how many subtasks these are.

    Args:
        strata: one for each subtask.
        parts: the documents of each, in the same order; () where they are not known.
    """
    if not parts:
        return list(strata), 0
    whole = Contributions(task="", filter="", metric="", unit=1.0, parts=tuple(parts))
    units = flip_units([whole])
    labels = [units.of_tasks[part.task] for part in parts]
    found: list[Stratum] = []
    joined = 0
    for label in dict.fromkeys(labels):
        members = [s for s, own in zip(strata, labels, strict=True) if own == label]
        if len(members) == 1:
            found += members
            continue
        joined += len(members)
        rows = units.strata == label
        together = Stratum.of_residuals(units.values[rows, 0], units.residuals[rows, 0])
        point = math.fsum(member.point for member in members)
        found.append(Stratum(point=point, stderr=together.stderr, df=together.df))
    return found, joined
