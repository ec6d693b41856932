"""Heavy tails: how much of a drift comes from how few documents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.moments import exact_sum


def worst_share(d: NDArray[np.float64]) -> tuple[int, float]:
    """Documents in the worst 1% (at least one), and their share of the total drift.

    ``d`` is float64, shape (n,), n >= 1. "Worst" is in the direction of the total: the largest d
    of a drift to the worse, the smallest of an improvement. The share passes 1 where the other
    documents point the other way, and is 0 where the total is 0.
    """
    count = max(1, d.shape[0] // 100)
    total = exact_sum(d)
    if total == 0.0:
        return count, 0.0
    along = d if total > 0.0 else -d
    worst = np.partition(along, along.shape[0] - count)[-count:]
    return count, exact_sum(worst) / abs(total)
