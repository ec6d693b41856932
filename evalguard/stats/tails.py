"""Heavy tails: how much of a drift comes from how few documents."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.moments import exact_sum, mean_moments
from evalguard.stats.probability import normal_tail_mean

# Flagged where so few documents carry more than half of the drift, and at least this many times
# what documents with normal scatter would: a small drift in light noise is not a heavy tail.
_HALF = 0.5
_TIMES_NORMAL = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The most affected 1% of documents, at least one.

    Attributes:
        count: how many documents these are.
        share: their part of the total drift; above 1 where the others point the other way.
        normal_share: the part they would have if d were normal with this mean and scatter.
    """

    count: int
    share: float
    normal_share: float

    @property
    def heavy(self) -> bool:
        """Whether a reader should know about it."""
        return self.share > max(_HALF, _TIMES_NORMAL * self.normal_share)


def worst_documents(d: NDArray[np.float64]) -> Tail:
    """The tail of per-document differences, float64, shape (n,), n >= 2.

    "Most affected" is in the direction of the total: the largest d of a drift to the worse, the
    smallest of an improvement. All shares are 0 where the total is 0.
    """
    n = d.shape[0]
    count = max(1, n // 100)
    total = exact_sum(d)
    if total == 0.0:
        return Tail(count=count, share=0.0, normal_share=0.0)
    along = d if total > 0.0 else -d
    worst = exact_sum(np.partition(along, n - count)[-count:])
    spread = mean_moments(d).stderr * math.sqrt(n)
    normal = count / n * (1.0 + normal_tail_mean(count / n) * spread * n / abs(total))
    return Tail(count=count, share=worst / abs(total), normal_share=normal)
