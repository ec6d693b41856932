"""Drift of one metric between paired runs: from documents to sigma, and what each contributes.

Each metric has a scale on which its drift D is estimated, positive where the candidate is worse:

    mean, 0/1              D = mean(d)                        unit of the metric
    bits_per_byte          D = sum(d) / sum(w) / ln 2         bits
    other (f1, bleu ...)   D = +-(metric_cand - metric_base)  unit of the metric, by bootstrap
    perplexity             D = mean(d)                        nats, log scale
    weighted_perplexity    D = sum(d) / sum(w)                nats a word or byte, log scale

On a log scale metric_cand = metric_base * exp(+-D), so that the metric cancels from sigma:

    sigma = (metric_cand - metric_base) / SE_base = (exp(D) - 1) / SE_log_base

with SE_base = metric_base * SE_log_base (delta method). The map is increasing, so the interval of
sigma is the mapped interval of D, and interval, p-value and sign always agree.

Where documents belong to clusters, the standard error of D is the cluster-robust one, and below
20 clusters whole clusters change sign (clusters.py). SE_base stays the one that lm-eval reports.
Where documents are too skewed or too unequal for t, the more careful of t and of a corrected one
decides (``skewness.py``), and t stands beside it.

SE_base is taken as a known unit here, as in port reports: its own sampling error is not a part
of the paired interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from evalguard.core.moments import Array, Moments, exact_sum, mean_moments, moments
from evalguard.core.pairing import PairedScores
from evalguard.core.verdict import SigmaScale
from evalguard.stats.binary import flip_estimate
from evalguard.stats.bootstrap import paired_bootstrap
from evalguard.stats.clusters import (
    FEWEST_FOR_T,
    cluster_stderr,
    cluster_sums,
    compared_units,
    sign_flip_estimate,
)
from evalguard.stats.estimate import (
    Estimate,
    fair_coin_upper_tail,
    normal_upper_tail,
    scatters,
    skellam_upper_tail,
    t_estimate,
)
from evalguard.stats.scatter import planned_scatter
from evalguard.stats.sign_flip import limited_to_signs, limited_to_swaps
from evalguard.stats.skewness import careful_t

_SIXTEENTHS = (np.arange(16) + 0.5) / 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A metric's two values, its paired drift, and the map from drift to sigma.

    Attributes:
        base, candidate: the metric with its unpaired closed-form standard error (metric units).
        paired_stderr: standard error of the drift in metric units (delta method on a log scale).
        estimate: the drift D, positive is worse, on the metric's estimation scale.
        unit: SE_base on the estimation scale.
        log_sign: 0 for a linear scale; on a log scale +1 if a lower metric is better, else -1.
        flips: (b, c) for 0/1 metrics.
        plain: the t estimate before it was corrected for skewed or very unequal documents; None
            where there is nothing to correct. It decides nothing.
        documents: independent ones, of 0/1 metrics; else 0.
        undefined: share of a bootstrap's resamples for which the metric has no number.
        planned_scatter: see ``scatter.planned_scatter``; 1 of independent 0/1 documents, whose
            flips tell.
    """

    base: Moments
    candidate: Moments
    paired_stderr: float
    estimate: Estimate
    unit: float
    log_sign: int = 0
    flips: tuple[int, int] | None = None
    plain: Estimate | None = None
    documents: int = 0
    undefined: float = 0.0
    planned_scatter: float | None = 1.0

    @property
    def scale(self) -> SigmaScale:
        """The map from drift to sigma."""
        return SigmaScale(unit=self.unit, log_sign=self.log_sign)

    def sigma_of(self, drift: float) -> float:
        """Sigma of a drift on the estimation scale; +-inf where the unit is 0 and it is not."""
        return self.scale.sigma_of(drift)

    def change_of(self, drift: float) -> float:
        """A drift on the estimation scale in units of the metric, positive is worse."""
        if self.log_sign == 0:
            return drift
        return self.base.point * SigmaScale(unit=1.0, log_sign=self.log_sign).sigma_of(drift)

    def drift_of_change(self, change: float) -> float:
        """The drift on the estimation scale that changes the metric so (the inverse map)."""
        if self.log_sign == 0:
            return change
        scale = SigmaScale(unit=1.0, log_sign=self.log_sign)
        return scale.drift_of(change / self.base.point)

    def drift_of(self, sigma: float) -> float:
        """The drift on the estimation scale that has this sigma (the inverse map)."""
        return self.scale.drift_of(sigma)

    @property
    def sigma(self) -> float:
        """The harness sigma: (metric_cand - metric_base) / SE_base, positive is worse."""
        return self.sigma_of(self.estimate.point)

    @property
    def sigma_interval(self) -> tuple[float, float]:
        """The paired interval of the drift in units of SE_base."""
        return self.sigma_of(self.estimate.low), self.sigma_of(self.estimate.high)

    def false_alarm_probability(self, margin: float) -> float:
        """About 1 - Phi(margin * SE_base / SE_paired), on the estimation scale."""
        return self.chance_beyond(margin * self.unit)

    def chance_beyond(self, tolerated: float) -> float:
        """The chance that an unchanged candidate drifts by more than ``tolerated``.

        The chance that a candidate without any true drift, but with this paired standard error,
        crosses the margin. It is an estimate: the standard errors are. Answers flip one by one: of
        b + c flips the lead b - c is the difference of two Poisson counts of mean (b + c) / 2
        (Skellam), which crosses where it is a whole number above the margin, and the normal tail
        does not count whole numbers. The flips that are seen leave open what their mean is: a
        gamma distribution of shape b + c + 1 (Laplace's prior), by its quantiles. Differences that
        are all alike show no standard error: there it is the chance that enough of their signs
        agree. 0 where no difference is seen at all.
        """
        estimate = self.estimate
        if self.flips is not None and self.documents:
            flips, lead = sum(self.flips), math.floor(tolerated * self.documents) + 1
            means = special.gammaincinv(flips + 1.0, _SIXTEENTHS) if flips else np.zeros(1)
            return float(np.mean([skellam_upper_tail(lead, mean) for mean in means.tolist()]))
        if scatters(estimate):
            return normal_upper_tail(tolerated / estimate.stderr)
        if estimate.point == 0.0 or not estimate.differing:
            return 0.0
        share = 0.5 + 0.5 * tolerated / abs(estimate.point)
        return fair_coin_upper_tail(math.floor(estimate.differing * share) + 1, estimate.differing)


def estimate_drift(paired: PairedScores, *, confidence: float) -> Drift:
    """Estimate the drift of one metric by the method that its aggregation asks for.

    The scores must be finite, of at least two documents, and the weights (where the aggregation
    has any) must not sum to 0.
    """
    estimate = _binary_drift if is_binary(paired) else _ESTIMATORS[paired.base.aggregation]
    drift = estimate(paired, confidence)
    if drift.documents or paired.base.rescoring is not None:
        return drift
    values, weights = compared_units(paired)
    point = moments(values, weights).point
    residuals = values - point * (1.0 if weights is None else weights)
    return replace(drift, planned_scatter=planned_scatter(drift.estimate, residuals))


def is_binary(paired: PairedScores) -> bool:
    """Whether this is a mean of zeros and ones in both runs."""
    return paired.base.aggregation == "mean" and all(
        bool(np.all((table.values == 0.0) | (table.values == 1.0)))
        for table in (paired.base, paired.candidate)
    )


def _binary_drift(paired: PairedScores, confidence: float) -> Drift:
    b, c = int(np.sum(paired.d > 0.0)), int(np.sum(paired.d < 0.0))
    if paired.clusters:  # McNemar's test takes documents as independent
        return replace(_mean_drift(paired, confidence, flips=True), flips=(b, c))
    base = mean_moments(paired.base.values)
    estimate = flip_estimate(b, c, paired.base.n, confidence=confidence)
    return Drift(
        base=base,
        candidate=mean_moments(paired.candidate.values),
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=base.stderr,
        flips=(b, c),
        documents=paired.base.n,
    )


def _mean_drift(paired: PairedScores, confidence: float, *, flips: bool = False) -> Drift:
    base = mean_moments(paired.base.values)
    estimate, plain = _paired_t(paired, 1.0, confidence=confidence, method="paired-t", flips=flips)
    return Drift(
        base=base,
        candidate=mean_moments(paired.candidate.values),
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=base.stderr,
        plain=plain,
    )


def _bits_drift(paired: PairedScores, confidence: float) -> Drift:
    weights, bits = paired.base.weights, 1.0 / math.log(2.0)
    base, candidate = (
        Moments(point=-rate.point * bits, stderr=rate.stderr * bits)
        for rate in (
            moments(paired.base.values, weights),
            moments(paired.candidate.values, weights),
        )
    )
    estimate, plain = _paired_t(paired, bits, confidence=confidence, method="paired-t-ratio")
    return Drift(
        base=base,
        candidate=candidate,
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=base.stderr,
        plain=plain,
    )


def _perplexity_drift(paired: PairedScores, confidence: float) -> Drift:
    weights = paired.base.weights
    base_rate = moments(paired.base.values, weights)
    candidate = _perplexity(moments(paired.candidate.values, weights))
    method = "paired-t-log" if weights is None else "paired-t-log-ratio"
    estimate, plain = _paired_t(paired, 1.0, confidence=confidence, method=method)
    return Drift(
        base=_perplexity(base_rate),
        candidate=candidate,
        paired_stderr=estimate.stderr * candidate.point if estimate.stderr else 0.0,
        estimate=estimate,
        unit=base_rate.stderr,
        log_sign=SigmaScale.log_sign_of(paired.base),
        plain=plain,
    )


def _rescored_drift(paired: PairedScores, confidence: float) -> Drift:
    base, candidate = paired.base.rescoring, paired.candidate.rescoring
    assert base is not None
    assert candidate is not None
    units = np.asarray(paired.clusters or paired.base.doc_ids)
    moved = [ours != theirs for ours, theirs in zip(base.items, candidate.items, strict=True)]
    differing = len(set(units[moved].tolist()))
    resampled = paired_bootstrap(
        base.metric,
        candidate.metric,
        paired.base.n,
        resamples=base.resamples,
        confidence=confidence,
        sign=-1 if paired.base.higher_is_better else 1,
        clusters=paired.clusters,
        differing=differing,
    )
    estimate = limited_to_swaps(
        resampled.estimate,
        differing=differing,
        units=len(set(units.tolist())),
    )
    return Drift(
        base=resampled.base,
        candidate=resampled.candidate,
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=resampled.base.stderr,
        undefined=resampled.undefined,
    )


_ESTIMATORS: dict[str, Callable[[PairedScores, float], Drift]] = {
    "mean": _mean_drift,
    "perplexity": _perplexity_drift,
    "weighted_perplexity": _perplexity_drift,
    "bits_per_byte": _bits_drift,
    "other": _rescored_drift,
}


def _paired_t(
    paired: PairedScores, factor: float, *, confidence: float, method: str, flips: bool = False
) -> tuple[Estimate, Estimate | None]:
    """The estimate that decides, and the plain t estimate where it is more careful than that."""
    d, weights = paired.d, paired.base.weights
    drift, values = _beyond_rounding(moments(d, weights), paired), d
    stderr = drift.stderr
    if paired.clusters:
        sums = cluster_sums(d, weights, paired.clusters)
        if sums.count < FEWEST_FOR_T:
            signs = sign_flip_estimate(d, weights, factor, sums, confidence=confidence)
            # Signs need no correction for unequal sizes, whatever these are.
            decides = careful_t(
                signs, sums.values, sums.weights, factor, df=sums.count - 1, flips=flips
            )
            return decides, None if decides is signs else signs
        stderr, values, weights = cluster_stderr(sums), sums.values, sums.weights
        method = method.replace("paired", "cluster")
    plain = t_estimate(
        drift.point * factor,
        stderr * factor,
        df=values.shape[0] - 1,
        confidence=confidence,
        method=method,
    )
    plain = limited_to_signs(plain, values, weights, factor)
    decides = careful_t(plain, values, weights, factor, flips=flips)
    return decides, None if decides is plain else plain


def _beyond_rounding(drift: Moments, paired: PairedScores) -> Moments:
    """The drift, 0 where it is no more than what the last bits of the scores leave open.

    Each score is known to half a unit in its last place, so that n differences sum to 0 or to
    eps / 2 of all scores: 0.1 lost and 0.1 won is not a drift, whatever the doubles add up to. At a
    margin of 0 their last bit would decide.
    """
    scores = np.abs(paired.base.values) + np.abs(paired.candidate.values)
    known = 0.5 * float(np.finfo(np.float64).eps) * exact_sum(scores)
    return replace(drift, point=0.0) if abs(exact_sum(paired.d)) <= known else drift


def _perplexity(rate: Moments) -> Moments:
    """exp(-rate) and its standard error by the delta method."""
    try:
        value = math.exp(-rate.point)
    except OverflowError:
        value = math.inf
    return Moments(point=value, stderr=value * rate.stderr if rate.stderr else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskContributions:
    """The documents of one task in a drift that is linear in them.

    Attributes:
        doc_ids: int64, shape (n,), ascending.
        values: float64, shape (n,): d_i / n for a mean, d_i / sum w for a ratio; their sum is what
            the task adds to the drift.
        shares: float64, shape (n,), summing to 1: 1 / n, or w_i / sum w.
        doc_hashes: n strings; clusters: n labels, or () where each document stands alone.
    """

    task: str
    doc_ids: np.ndarray[tuple[int], np.dtype[np.int64]]
    values: Array
    shares: Array
    doc_hashes: Sequence[str] = ()
    clusters: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """What the task adds to the drift."""
        return exact_sum(self.values)

    @property
    def residuals(self) -> Array:
        """The linearised residuals, values - total * shares, which sum to 0."""
        return self.values - self.total * self.shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contributions:
    """A metric's drift as a sum over documents, on its estimation scale (see ``drift``).

    Attributes:
        parts: one for the metric of a task, several for that of a group of tasks.
        unit: standard error of the base on that scale, so that values / unit are in sigma (to
            first order on a log scale).
        log_sign: of that scale, see ``SigmaScale``.
    """

    task: str
    filter: str
    metric: str
    unit: float
    parts: tuple[TaskContributions, ...]
    log_sign: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return (self.task, self.filter, self.metric)

    @property
    def total(self) -> float:
        """The drift."""
        return math.fsum(part.total for part in self.parts)


def contributions(paired: PairedScores, drift: Drift) -> Contributions | None:
    """Take a drift apart into its documents; None where no sum makes it (bootstrapped metrics)."""
    table = paired.base
    if table.rescoring is not None:
        return None
    weights = np.ones(table.n) if table.weights is None else table.weights
    total = exact_sum(weights)
    scale = 1.0 / math.log(2.0) if table.aggregation == "bits_per_byte" else 1.0
    part = TaskContributions(
        task=table.task,
        doc_ids=table.doc_ids,
        values=paired.d * (scale / total),
        shares=weights / total,
        doc_hashes=table.doc_hashes,
        clusters=paired.clusters,
    )
    return Contributions(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        unit=drift.unit,
        parts=(part,),
        log_sign=drift.log_sign,
    )
