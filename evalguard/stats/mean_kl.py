"""The interval of a mean KL: a size that is never below 0, and that few documents carry.

A t interval of it ends too low, because a sample often holds fewer of the largest documents than
it should, and then nothing in it says so. Three things raise its upper end; the highest counts:

- Hall's and the CR2 correction, where skewed or unequal documents ask for them
  (``corrected_t``);
- the log scale, on which a mean that cannot be negative scatters more evenly:
  m exp(t SE / m) (delta method);
- the same two, had the document that raises the mean most been seen once more. The next of n + 1
  documents exceeds all others once in n + 1 times, so one more of that size is what a sample that
  misses them lacks.

The lower end is that of the (corrected) t interval, or 0. How often all that holds the truth,
and what bootstraps and others hold: ``benchmarks.kl_interval``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from evalguard.core.distribution_comparison import (
    Figure,
)
from evalguard.stats.estimate import Estimate
from evalguard.stats.moments import Array
from evalguard.stats.positions import Positions, ratio_estimate
from evalguard.stats.probability import t_critical


def mean_kl(positions: Positions, kl: Array) -> Figure:
    """Mean of ``kl``, shape (T,), over all positions; no interval of it reaches below 0."""
    found = positions.mean(kl)
    if found.interval is None:
        return found
    high = kl_upper_end(positions.sums(kl), positions.weights, confidence=positions.confidence)
    low, by_t = found.interval
    return replace(found, interval=(max(low, 0.0), max(by_t, high)))


def kl_upper_end(sums: Array, weights: Array, *, confidence: float) -> float:
    """Upper end of the interval of sum S / sum w.

    Args:
        sums, weights: of the documents, or clusters of them; float64, shape (G,), G >= 2.
    """
    excess = sums - np.sum(sums) / np.sum(weights) * weights
    largest = int(np.argmax(excess))
    once_more = np.append(sums, sums[largest]), np.append(weights, weights[largest])
    found = (
        ratio_estimate(sums, weights, confidence=confidence),
        ratio_estimate(*once_more, confidence=confidence),
    )
    df = sums.shape[0] - 1
    return max(max(estimate.high, _on_log_scale(estimate, df)) for estimate in found)


def _on_log_scale(estimate: Estimate, df: int) -> float:
    """Upper end of the t interval of log(mean), mapped back; 0 where nothing was measured."""
    if estimate.point <= 0.0:
        return 0.0
    exponent = t_critical(estimate.confidence, df) * estimate.stderr / estimate.point
    return estimate.point * math.exp(exponent) if exponent < 700.0 else math.inf
