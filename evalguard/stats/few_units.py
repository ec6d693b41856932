"""What few differences can show: no more than their signs grant.

Student's t takes differences as normal. Few of them may be anything: two documents that each
lose the same amount do not scatter, and t calls that certain, while an unchanged candidate that
wins or loses that amount by chance does it once in four times. What holds of every distribution
that is symmetric about 0 is that the signs of the differences are those of a fair coin, given
their sizes (R. A. Fisher, The Design of Experiments, 1935, section 21). So the smallest one-
sided p-value that m differences can have is 2^-m, and where fewer than 20 units differ, the t
test is joined with the sign-flip test of them: the larger p-value of the two, so that no
symmetric null is called real more often than the level says. The same where many differ, and few
weigh nearly all: a text as long as all others together has hardly a residual of its own, and t
takes its drift for certain.

The interval is joined likewise. Of fewer than 20 units with the drifts that a sign flip does not
reject (``typical_values``), which are all where 2^-n is above the level: of fewer than 6 at 95%.
Of more, few of which differ, with an end pulled back to 0 where the signs do not grant that 0
lies beyond it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from evalguard.stats.estimate import Estimate, scatters
from evalguard.stats.moments import Array
from evalguard.stats.sign_flip import sign_flip
from evalguard.stats.skewness import unequal_weights
from evalguard.stats.typical_interval import typical_interval

# From so many units on, all sign patterns are too many to try, and t is trusted.
ENOUGH_UNITS = 20
SIGNS = "-sign-flip"


def limited_to_signs(
    estimate: Estimate, values: Array, weights: Array | None, factor: float
) -> Estimate:
    """Join a t estimate with the sign-flip test where few units differ.

    Args:
        estimate: t estimate of the mean of ``values``, or of their ratio to ``weights``.
        values, weights: of the units, documents or clusters of them; float64, shape (n,). Units
            without weight and value say nothing, and are not counted.
        factor: from the unit of ``values`` to that of the estimate.

    Returns:
        The joined estimate, whose method ends in "-sign-flip"; the estimate as it is where 20
        units or more differ and weigh like as many of one size (but for p = 2^-m where nothing
        scatters), or none.
    """
    carried = np.ones_like(values) if weights is None else weights
    counted = (carried != 0.0) | (values != 0.0)
    values, carried = values[counted], carried[counted]
    differing = int(np.count_nonzero(values))
    if differing == 0:
        return estimate
    if differing >= ENOUGH_UNITS and _effective(carried) >= ENOUGH_UNITS:
        return estimate if scatters(estimate) else _equal(estimate, differing)
    joined = _as_sure_as(
        estimate, sign_flip(values).p_value, sign_flip(-values).p_value, differing=differing
    )
    method = estimate.method + SIGNS
    joined = replace(joined, method=method, interval_method=method)
    if values.shape[0] >= ENOUGH_UNITS:
        return joined
    low, high = typical_interval(values, carried, confidence=estimate.confidence)
    return replace(joined, low=min(joined.low, low * factor), high=max(joined.high, high * factor))


def limited_to_swaps(estimate: Estimate, *, differing: int, units: int) -> Estimate:
    """The floor alone, for a metric that is not a sum over documents.

    There an unchanged candidate's answer to a document could as well have been the base's, and the
    other way round. Of 2^m such swaps one is what was seen, so that 2^-m is a floor here too. The
    interval is open on both sides where no number of swaps of all ``units`` could deny a drift.
    """
    least = 0.5**differing
    if differing == 0 or (estimate.p_value >= least and least <= _level(estimate)):
        return estimate
    held = _as_sure_as(estimate, least, least, differing=differing)
    if 0.5**units <= _level(estimate):
        return held
    return replace(held, low=-math.inf, high=math.inf)


def _effective(weights: Array) -> int:
    """Units of one weight that would count as much; n equal ones count as n, not a bit less."""
    return math.floor(unequal_weights(weights).effective * (1.0 + 1e-12))


def _equal(estimate: Estimate, differing: int) -> Estimate:
    """Differences of one size and one sign: one pattern of 2^m has as much."""
    p_value = 0.5**differing if estimate.point > 0.0 else 1.0
    return replace(estimate, p_value=p_value, differing=differing)


def _as_sure_as(estimate: Estimate, worse: float, better: float, *, differing: int) -> Estimate:
    """The estimate with p-values of at least these, and ends that they grant."""
    level = _level(estimate)
    p_value = max(estimate.p_value, worse)
    return replace(
        estimate,
        low=min(estimate.low, 0.0) if p_value > level else estimate.low,
        high=max(estimate.high, 0.0) if better > level else estimate.high,
        p_value=p_value,
        differing=differing,
    )


def _level(estimate: Estimate) -> float:
    return (1.0 - estimate.confidence) / 2.0
