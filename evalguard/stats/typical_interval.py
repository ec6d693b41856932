"""Typical values: the drifts that a sign flip of few units does not reject.

Taking away a drift delta leaves unit g with S_g - delta w_g; those flipped, F, sum to 0 or less
exactly where delta is at least r_F = sum_F S / sum_F w. So the ends of the interval are order
statistics of r_F over all sets F of units (J. A. Hartigan, JASA 64, 1969, 1303-1317), without
any search.
"""

from __future__ import annotations

import math

import numpy as np

from evalguard.stats.moments import Array
from evalguard.stats.sign_flip import MOST_ENUMERATED, subset_sums


def typical_interval(values: Array, weights: Array, *, confidence: float) -> tuple[float, float]:
    """The interval of sum S / sum w from sign flips of the units, exact for symmetric ones.

    Fewer units than the confidence asks for (6 for 95%) leave it open on both sides.

    Args:
        values, weights: float64, shape (n,), n <= 20; no weight below 0.
    """
    return -_far_end(-values, weights, confidence), _far_end(values, weights, confidence)


def _far_end(values: Array, weights: Array, confidence: float) -> float:
    """The largest delta for which more than (1 - confidence) / 2 of all 2^n sets sum to 0 or more.

    Sets without weight do so whatever delta is, if their values do; the empty one is one of them.
    """
    assert values.shape[0] <= MOST_ENUMERATED
    order = np.lexsort((weights, values))  # so that the order of the units changes no bit
    values, weights = values[order], weights[order]
    sums, totals = subset_sums(values), subset_sums(weights)
    weighty = totals > 0.0
    always = int(np.count_nonzero(sums[~weighty] >= 0.0))
    wanted = math.floor((1.0 - confidence) / 2.0 * sums.shape[0]) + 1 - always
    if wanted <= 0:
        return math.inf
    ratios = np.sort(sums[weighty] / totals[weighty])
    return float(ratios[-wanted]) if wanted <= ratios.shape[0] else -math.inf
