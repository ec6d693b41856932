"""Effective sample sizes: positions of one document resemble each other, and count for less.

A share over n positions with the (cluster-robust) variance V is as sure as one over
n_eff = p (1 - p) / V independent positions. Intervals of shares and percentiles are then the exact
binomial ones of n_eff (E. L. Korn, B. I. Graubard, Survey Methodology 24, 1998, 193-201).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from evalguard.core.moments import Array, exact_sum, ratio_moments
from evalguard.stats.estimate import normal_critical, t_critical
from evalguard.stats.skewness import unequal_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of positions, from sums over G documents (or clusters of them).

    Attributes:
        hits: positions counted, per document; fractions of a position may count, shape (G,).
        positions: of each document, shape (G,), with a sum above 0.
    """

    hits: Array
    positions: Array

    @property
    def value(self) -> float:
        """The share over all positions."""
        return exact_sum(self.hits) / exact_sum(self.positions)

    def effective(self, *, confidence: float) -> float:
        """n_eff, between the effective number of documents and that of positions.

        V is known from few documents where few have any miss: Satterthwaite's degrees of freedom
        of it, (sum e^2)^2 / sum e^4 of the residuals e, take n_eff down by (z / t)^2, Korn and
        Graubard's factor. Where all documents agree to the last position there is nothing to
        learn V from, and each document, of whatever length, counts once: (sum w)^2 / sum w^2.
        """
        total, share = exact_sum(self.positions), self.value
        least = unequal_weights(self.positions).effective
        residuals = self.hits - share * self.positions
        scale = float(np.max(np.abs(residuals)))
        spread = share * (1.0 - share)
        if scale == 0.0 or not 0.0 < share < 1.0 or self.hits.shape[0] < 2:
            return least
        squares = np.square(residuals / scale)
        df = exact_sum(squares) ** 2 / exact_sum(np.square(squares))
        variance = ratio_moments(self.hits, self.positions).stderr ** 2
        factor = normal_critical(confidence) / t_critical(confidence, df)
        return min(total, max(least, spread / variance * factor * factor))

    def interval(self, *, confidence: float) -> tuple[float, float]:
        """Clopper and Pearson's interval of n_eff positions."""
        n, tail = self.effective(confidence=confidence), (1.0 - confidence) / 2.0
        hits = self.value * n
        misses = n - hits
        low = 0.0 if hits <= 0.0 else float(special.betaincinv(hits, misses + 1.0, tail))
        high = 1.0 if misses <= 0.0 else float(special.betaincinv(hits + 1.0, misses, 1.0 - tail))
        return low, high


def rank_limits(
    probability: float, n: int, effective: float, *, confidence: float
) -> tuple[int, int]:
    """Ranks, from 1 to n, of the ordered values that a quantile lies between.

    The exact, distribution-free interval from order statistics, of n_eff independent values: the
    number of values below the quantile is binomial (H. A. David, H. N. Nagaraja, Order Statistics,
    2003, section 7.1). Ranks of n_eff are widened outwards to those of n.

    Returns:
        (low, high); 0 and n + 1 stand for an end that the values do not bound.
    """
    m = max(1, math.floor(effective))
    tail = (1.0 - confidence) / 2.0
    low = _binomial_quantile(tail, m, probability)
    high = _binomial_quantile(1.0 - tail, m, probability) + 1
    first = 0 if low == 0 else (low - 1) * n // m + 1
    return first, n + 1 if high > m else -(-high * n // m)


def _binomial_quantile(level: float, n: int, probability: float) -> int:
    """The smallest k with P[Bin(n, probability) <= k] >= level."""
    k = max(0, math.ceil(float(special.bdtrik(level, n, probability))))
    if k > 0 and float(special.bdtr(k - 1, n, probability)) >= level:
        return k - 1
    return k
