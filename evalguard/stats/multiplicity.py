"""Several tests at once."""

from __future__ import annotations

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
