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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.bootstrap import sign_flip
from evalguard.stats.difference_shape import typical_interval, unequal_weights
from evalguard.stats.probability import (
    SIGN_FLIP,
    Array,
    Estimate,
    exact_sum,
    moments,
    ratio_moments,
    scatters,
)

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


# Clusters: documents that share a passage are not independent, so that passages are what counts.
#
# With S_g = sum of e_i over the documents i of cluster g, e_i = d_i - mean d (or d_i - D w_i for a
# ratio of sums), the standard error is sqrt(G / (G - 1) sum_g S_g^2) / n (or / sum w), with G - 1
# degrees of freedom: the cluster-robust variance of a regression on a constant (K.-Y. Liang, S. L.
# Zeger, Biometrika 73, 1986, 13-22; E. Miller, "Adding error bars to evals", 2024).


# Below this a t distribution is a poor guess of how few, unequal clusters scatter.
FEWEST_FOR_T = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSums:
    """Per-cluster sums, in ascending order of label; each float64, shape (G,).

    Attributes:
        values: of the differences.
        weights: of the weights; the number of documents where there are none.
    """

    values: Array
    weights: Array

    @property
    def count(self) -> int:
        """G, the number of clusters."""
        return int(self.values.shape[0])


def cluster_count(paired: PairedScores) -> int | None:
    """G, the number of clusters; None where each document stands alone."""
    return len(set(paired.clusters)) if paired.clusters else None


def cluster_sums(values: Array, weights: Array | None, labels: Sequence[str]) -> ClusterSums:
    """Sum values and weights, float64, shape (n,), over the documents with the same label."""
    _, members = np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)
    order = np.argsort(members, kind="stable")
    cuts = np.flatnonzero(np.diff(members[order])) + 1
    counted = np.ones_like(values) if weights is None else weights
    return ClusterSums(values=_sums(values[order], cuts), weights=_sums(counted[order], cuts))


def cluster_stderr(sums: ClusterSums) -> float:
    """The cluster-robust standard error of sum d / n, or of sum d / sum w; G >= 2.

    It is that of a ratio of sums over the clusters as they are, of any size.
    """
    return ratio_moments(sums.values, sums.weights).stderr


def sign_flip_estimate(
    d: Array, weights: Array | None, factor: float, sums: ClusterSums, *, confidence: float
) -> Estimate:
    """Test and interval of few clusters: whole clusters change sign, G < 20.

    The interval holds the drifts that the test does not reject (``typical_values``), exactly as
    many as the test grants: an end on the other side of 0 by rounding alone is pulled back to it.

    Args:
        factor: from the unit of d to that of the drift.
    """
    point = moments(d, weights).point
    level = (1.0 - confidence) / 2.0
    low, high = typical_interval(sums.values, sums.weights, confidence=confidence)
    p_value = sign_flip(sums.values).p_value
    return Estimate(
        point=point * factor,
        stderr=cluster_stderr(sums) * factor,
        low=(min(low, 0.0) if p_value > level else low) * factor,
        high=(max(high, 0.0) if sign_flip(-sums.values).p_value > level else high) * factor,
        p_value=p_value,
        method=SIGN_FLIP,
        interval_method=SIGN_FLIP,
        confidence=confidence,
        differing=int(np.count_nonzero(sums.values)),
    )


def _sums(ordered: Array, cuts: NDArray[np.int64]) -> Array:
    return np.array([exact_sum(part) for part in np.split(ordered, cuts)])
