"""The interval of a mean KL: a size that is never below 0, and that few documents carry.

A t interval of it ends too low, because a sample often holds fewer of the largest documents than
it should. Two things raise its upper end; the higher one counts:

- the corrections of skewed documents and unequal texts, as of a drift (``careful_t``): the sample
  with more documents like its most extreme one;
- the log scale, on which a mean that cannot be negative scatters more evenly:
  m exp(t SE / m) (delta method).

The lower end is that of the (corrected) t interval, or 0. How often that holds the truth, and how
often it is said that it may not: ``benchmarks.kl_interval``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from evalguard.core.distribution_comparison import (
    Figure,
)
from evalguard.stats.estimate import Estimate, t_estimate
from evalguard.stats.moments import Array, ratio_moments
from evalguard.stats.positions import Positions
from evalguard.stats.probability import t_critical
from evalguard.stats.skewed.corrected_t import careful_t
from evalguard.stats.skewness import skewness


def mean_kl(positions: Positions, kl: Array) -> Figure:
    """Mean of ``kl``, shape (T,), over all positions; no interval of it reaches below 0."""
    found = positions.mean(kl)
    if found.interval is None:
        return found
    high = kl_upper_end(positions.sums(kl), positions.weights, confidence=positions.confidence)
    return replace(found, interval=(max(found.interval[0], 0.0), high))


def kl_upper_end(sums: Array, weights: Array, *, confidence: float) -> float:
    """Upper end of the interval of sum S / sum w.

    Args:
        sums, weights: of the documents, or clusters of them; float64, shape (G,), G >= 2.
    """
    found, df = ratio_moments(sums, weights), sums.shape[0] - 1
    plain = t_estimate(found.point, found.stderr, df=df, confidence=confidence, method="t-ratio")
    return max(careful_t(plain, sums, weights, 1.0).high, _on_log_scale(plain, df))


def is_carried_by_few(sums: Array, weights: Array) -> bool:
    """Whether documents are fewer than their skewness asks for: the upper end may be too low.

    Arguments as of ``kl_upper_end``.
    """
    return bool(skewness(sums, weights).needed > sums.shape[0])


def _on_log_scale(estimate: Estimate, df: int) -> float:
    """Upper end of the t interval of log(mean), mapped back; 0 where nothing was measured."""
    if estimate.point <= 0.0:
        return 0.0
    exponent = t_critical(estimate.confidence, df) * estimate.stderr / estimate.point
    return estimate.point * math.exp(exponent) if exponent < 700.0 else math.inf
