"""Clusters: documents that share a passage are not independent, so that passages are what counts.

With S_g = sum of e_i over the documents i of cluster g, e_i = d_i - mean d (or d_i - D w_i for a
ratio of sums), the standard error is sqrt(G / (G - 1) sum_g S_g^2) / n (or / sum w), with G - 1
degrees of freedom: the cluster-robust variance of a regression on a constant (K.-Y. Liang, S. L.
Zeger, Biometrika 73, 1986, 13-22; E. Miller, "Adding error bars to evals", 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import Array, exact_sum, moments, ratio_moments
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.stats.estimate import SIGN_FLIP, Estimate, t_estimate
from evalguard.stats.sign_flip import sign_flip, typical_interval


def cluster_labels(
    task: str, doc_ids: Iterable[int], tables: Sequence[ScoreTable]
) -> tuple[Mapping[int, str] | None, str]:
    """Each document's label, and the field it comes from; None where each stands alone.

    A document that no metric has a value for belongs to no cluster but its own.
    """
    clustered = [table for table in tables if table.task == task and table.clusters]
    if not clustered:
        return None, ""
    labels = {
        doc_id: f"in {label}"
        for table in clustered
        for doc_id, label in zip(table.doc_ids.tolist(), table.clusters, strict=True)
    }
    alone = {doc_id: f"document {doc_id}" for doc_id in doc_ids}
    return {**alone, **labels}, clustered[0].cluster_field


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


def compared_units(paired: PairedScores) -> tuple[Array, Array | None]:
    """Differences and weights of the documents, or of whole clusters of them."""
    if not paired.clusters:
        return paired.d, paired.base.weights
    sums = cluster_sums(paired.d, paired.base.weights, paired.clusters)
    return sums.values, sums.weights


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


STRATIFIED = "stratified-t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """What one stratum adds: its part of the estimate, the part's standard error and its df."""

    point: float
    stderr: float
    df: float

    @classmethod
    def of_residuals(cls, values: Array, residuals: Array) -> Stratum:
        """A stratum of G units, float64, shape (G,), whose residuals sum to 0.

        SE = sqrt(G / (G - 1) sum r^2), the linearised standard error of the sum of the values. A
        single unit shows no scatter: its standard error is infinite.
        """
        count = residuals.shape[0]
        if count < 2:
            return cls(point=exact_sum(values), stderr=math.inf, df=1.0)
        scatter = exact_sum(residuals * residuals) * count / (count - 1)
        return cls(point=exact_sum(values), stderr=math.sqrt(scatter), df=count - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """A sum over strata and the degrees of freedom of its standard error."""

    estimate: Estimate
    df: float


def stratify_documents(strata: Sequence[Stratum], *, confidence: float) -> Stratified:
    """Add up independent strata: SE = sqrt(sum SE_t^2), t interval and one-sided p.

    Degrees of freedom by F. E. Satterthwaite (Biometrics Bulletin 2, 1946, 110-114):
    (sum SE_t^2)^2 / sum (SE_t^4 / df_t). Asymptotic where the strata are not normal.

    Args:
        strata: at least one.
    """
    variances = [stratum.stderr**2 for stratum in strata]
    total = math.fsum(variances)
    df = _satterthwaite(variances, [stratum.df for stratum in strata])
    estimate = t_estimate(
        math.fsum(stratum.point for stratum in strata),
        math.sqrt(total),
        df=df,
        confidence=confidence,
        method=STRATIFIED,
    )
    return Stratified(estimate=estimate, df=df)


def _satterthwaite(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """The degrees of freedom of a sum of variances; those of all strata where nothing scatters."""
    total = math.fsum(variances)
    if total == 0.0:
        return math.fsum(dfs)
    if math.isinf(total):
        return 1.0
    largest = max(variances)
    shares = [variance / largest for variance in variances]  # no square over- or underflows
    spread = math.fsum(share * share / df for share, df in zip(shares, dfs, strict=True))
    return math.fsum(shares) ** 2 / spread
