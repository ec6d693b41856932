"""Several tests at once: Holm, Benjamini-Hochberg, and the chance that any of them is false."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p-values, in the order given.

    Rejecting where an adjusted value is at most alpha keeps the chance of any false rejection at
    or below alpha, whatever the dependence (S. Holm, Scand. J. Statist. 6, 1979, 65-70).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Benjamini-Hochberg q-values, in the order given.

    q = min over all p_j >= p of m p_j / rank_j, at most 1. Taking what has q <= alpha for real
    keeps the expected share of false ones among them at or below alpha, for tests that are
    independent or positively dependent (Y. Benjamini, Y. Hochberg, J. R. Statist. Soc. B 57, 1995,
    289-300; Y. Benjamini, D. Yekutieli, Ann. Statist. 29, 2001, 1165-1188).
    """
    count = len(p_values)
    order = sorted(range(count), key=lambda index: p_values[index], reverse=True)
    adjusted = [0.0] * count
    lowest = 1.0
    for position, index in enumerate(order):
        lowest = min(lowest, p_values[index] * count / (count - position))
        adjusted[index] = lowest
    return tuple(adjusted)


def family_false_alarm(
    chances: Sequence[float], further: float = 0.0
) -> tuple[float | None, float | None]:
    """Bonferroni's bound, min(1, sum p_k), and 1 - prod(1 - p_k), as if independent.

    Args:
        chances: of each test's false alarm; None is returned for none.
        further: added to the bound alone: a chance that is not one of these tests'.
    """
    if not chances:
        return None, None
    bound = min(1.0, math.fsum([*chances, further]))
    if 1.0 in chances:
        return bound, 1.0
    return bound, -math.expm1(math.fsum(math.log1p(-chance) for chance in chances))
