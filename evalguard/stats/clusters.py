"""Clusters: documents that share a passage are not independent, so that passages are what counts.

With S_g = sum of e_i over the documents i of cluster g, e_i = d_i - mean d (or d_i - D w_i for a
ratio of sums), the standard error is sqrt(G / (G - 1) sum_g S_g^2) / n (or / sum w), with G - 1
degrees of freedom: the cluster-robust variance of a regression on a constant (K.-Y. Liang, S. L.
Zeger, Biometrika 73, 1986, 13-22; E. Miller, "Adding error bars to evals", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.estimate import SIGN_FLIP, Estimate
from evalguard.stats.moments import Array, moments, ratio_moments
from evalguard.stats.sign_flip import sign_flip
from evalguard.stats.typical_interval import typical_interval

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
    values = ordered.tolist()
    spans = pairwise([0, *cuts.tolist(), len(values)])
    return np.array([math.fsum(values[begin:end]) for begin, end in spans])
