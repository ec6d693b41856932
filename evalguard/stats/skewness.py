"""Tails: how much of a drift comes from how few documents, and whether its t interval holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.moments import exact_sum, mean_moments, moments
from evalguard.stats.probability import normal_tail_mean

# Flagged where so few documents carry more than half of the drift, and at least this many times
# what documents with normal scatter would: a small drift in light noise is not a heavy tail.
_HALF = 0.5
_TIMES_NORMAL = 2.0
_COCHRAN = 25.0
_FEWEST = 30.0
_ACCURACY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTail:
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


def worst_documents(d: NDArray[np.float64]) -> ScoreTail:
    """The tail of per-document differences, float64, shape (n,), n >= 2.

    "Most affected" is in the direction of the total: the largest d of a drift to the worse, the
    smallest of an improvement. All shares are 0 where the total is 0.
    """
    n = d.shape[0]
    count = max(1, n // 100)
    total = exact_sum(d)
    if total == 0.0:
        return ScoreTail(count=count, share=0.0, normal_share=0.0)
    along = d if total > 0.0 else -d
    worst = exact_sum(np.partition(along, n - count)[-count:])
    spread = mean_moments(d).stderr * math.sqrt(n)
    normal = count / n * (1.0 + normal_tail_mean(count / n) * spread * n / abs(total))
    return ScoreTail(count=count, share=worst / abs(total), normal_share=normal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewness:
    """How lopsided per-document differences are.

    Attributes:
        value: G1 = mean e^3 / (mean e^2)^1.5 of the residuals e about the drift; above 0 the long
            tail is that of documents that got much worse.
        needed: documents from which on a t interval of 95% is wrong in at most 6% of samples,
            25 G1^2 (W. G. Cochran, Sampling Techniques, 1977, section 2.15).
    """

    value: float
    needed: float


def skewness(d: NDArray[np.float64], weights: NDArray[np.float64] | None) -> Skewness:
    """Skewness of per-document differences about their mean, or about their ratio to the weights.

    Arrays are float64, shape (n,), n >= 2; without any scatter it is 0.
    """
    drift = moments(d, weights).point
    residuals = d - drift * (1.0 if weights is None else weights)
    scale = float(np.max(np.abs(residuals)))
    if scale == 0.0 or not math.isfinite(scale):
        return Skewness(value=0.0, needed=0.0)
    scaled = residuals / scale
    n = d.shape[0]
    value = exact_sum(scaled**3) / n / (exact_sum(scaled**2) / n) ** 1.5
    return Skewness(value=value, needed=_COCHRAN * value * value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalWeights:
    """How much a few long documents weigh in a ratio of sums.

    Attributes:
        effective: documents of equal weight that would count as much, (sum w)^2 / sum w^2.
        needed: documents from which on the ratio estimator's interval is trusted: 30, and so many
            that the mean weight is known to 10% (Cochran, Sampling Techniques, 1977, section 6.3).
    """

    effective: float
    needed: float


def unequal_weights(weights: NDArray[np.float64]) -> UnequalWeights:
    """Inequality of weights, float64, shape (n,), none negative, with a sum above 0."""
    n = weights.shape[0]
    shares = weights / exact_sum(weights)
    effective = 1.0 / exact_sum(shares * shares)
    variation = max(0.0, n / effective - 1.0)  # squared coefficient of variation
    return UnequalWeights(effective=effective, needed=max(_FEWEST, variation / _ACCURACY**2))
