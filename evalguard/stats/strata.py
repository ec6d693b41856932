"""Strata: an estimate that is a sum of independent parts, such as the subtasks of a group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from evalguard.core.across_tasks import AcrossTasks, Key
from evalguard.core.comparison import Comparison
from evalguard.stats.bootstrap import RESAMPLES, SEED
from evalguard.stats.contributions import Contributions, FlipUnits, TaskContributions, flip_units
from evalguard.stats.difference_shape import unequal_weights
from evalguard.stats.probability import (
    Array,
    Estimate,
    exact_sum,
    normal_critical,
    ratio_moments,
    t_critical,
    t_estimate,
)

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


# Effective sample sizes: positions of one document resemble each other, and count for less.
#
# A share over n positions with the (cluster-robust) variance V is as sure as one over n_eff = p (1
# - p) / V independent positions. Intervals of shares and percentiles are then the exact binomial
# ones of n_eff (E. L. Korn, B. I. Graubard, Survey Methodology 24, 1998, 193-201).


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


# The strata of a group's drift: its subtasks, joined where they share documents.
#
# Documents of different subtasks are independent, so that sum w_t D_t has the standard error
# sqrt(sum w_t^2 SE_t^2), SE_t that of subtask t (cluster-robust where it has clusters). Subtasks
# that ask about the same documents (one text in several templates) are not independent: they are
# one stratum of units, each a document with all that it adds to any of them.


# Two aggregates of n numbers that are equal but for rounding are equal.
_ROUNDING = 1e-15


def number(value: float | None) -> float:
    """A comparison's number, NaN where it has none."""
    return math.nan if value is None else value


def subtask_strata(comparisons: Sequence[Comparison], weights: Sequence[float]) -> list[Stratum]:
    """One stratum for each subtask: its drift, positive where the candidate is worse."""
    sign = -1.0 if comparisons[0].higher_is_better else 1.0
    strata = [
        Stratum(
            point=weight * sign * (number(c.candidate) - number(c.base)),
            stderr=weight * number(c.paired_stderr),
            df=(c.n_used if c.clusters is None else c.clusters) - 1.0,
        )
        for c, weight in zip(comparisons, weights, strict=True)
    ]
    size = math.fsum(
        weight * (abs(number(c.candidate)) + abs(number(c.base)))
        for c, weight in zip(comparisons, weights, strict=True)
    )
    if abs(math.fsum(stratum.point for stratum in strata)) > _ROUNDING * size:
        return strata
    rest = math.fsum(stratum.point for stratum in strata[:-1])
    last = Stratum(point=-rest, stderr=strata[-1].stderr, df=strata[-1].df)
    return [*strata[:-1], last]


def joined_strata(
    strata: Sequence[Stratum], parts: Sequence[TaskContributions]
) -> tuple[list[Stratum], int]:
    """Join the strata of subtasks that share documents; also return how many subtasks these are.

    Args:
        strata: one for each subtask.
        parts: the documents of each, in the same order; () where they are not known.
    """
    if not parts:
        return list(strata), 0
    whole = Contributions(task="", filter="", metric="", unit=1.0, parts=tuple(parts))
    units = flip_units([whole])
    labels = [units.of_tasks[part.task] for part in parts]
    found: list[Stratum] = []
    joined = 0
    for label in dict.fromkeys(labels):
        members = [s for s, own in zip(strata, labels, strict=True) if own == label]
        if len(members) == 1:
            found += members
            continue
        joined += len(members)
        rows = units.strata == label
        together = Stratum.of_residuals(units.values[rows, 0], units.residuals[rows, 0])
        point = math.fsum(member.point for member in members)
        found.append(Stratum(point=point, stderr=together.stderr, df=together.df))
    return found, joined


# All metrics together: one joint sign-flip null for pooled drift, max-z and Fisher's statistic.
#
# Under the null an unchanged candidate wins a document by as much as it loses one, in all metrics
# at once. Flipping the sign of a document in every metric together keeps their dependence, so that
# metrics of one task, or the same metric twice, count for no more than they say.
#
# A metric's z = sum c / sqrt(sum c^2), c the contributions of the units, is studentised, and its
# denominator is the same under every flip: one matrix product gives all resampled z.


# All patterns of so few units are no more than the random ones that would be drawn.
_MOST_ENUMERATED = 13
_ENTRIES_A_CHUNK = 1 << 21
# Statistics that are equal but for rounding count as equal.
_DECIMALS = 9


def across_tasks(
    metrics: Sequence[Contributions],
    *,
    confidence: float,
    left_out: Sequence[tuple[Key, str]] = (),
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> AcrossTasks:
    """Judge several metrics together.

    Three statistics: the pooled drift (metrics averaged within a task, tasks with equal weight),
    the largest z, and Fisher's -2 sum log p. Each has its p-value from the joint null, and the
    smallest of the three is calibrated by the same flips (P. H. Westfall, S. S. Young,
    Resampling-Based Multiple Testing, 1993, min-p): choosing the best of them costs what it must.
    Exact where all patterns are enumerated (at most 13 units that differ), else Monte Carlo with
    p = (1 + #) / (B + 1), in chunks: memory does not grow with B but for three numbers each.

    Args:
        metrics: at least one, none with a standard error of 0.
        left_out: metrics that are no part of it, with reasons, for the record.

    Raises:
        ValueError: for no metric, or one without a unit.
    """
    if not metrics or not all(metric.unit > 0.0 for metric in metrics):
        raise ValueError("judging metrics together needs metrics, each with a standard error")
    chosen = sorted(metrics, key=lambda metric: metric.key)
    shares = _equal_tasks(chosen)
    units = flip_units(chosen)
    null = _Null(units, shares)
    found = null.statistics(resamples, seed)
    return _judged(
        chosen,
        null,
        found,
        pooled=_pooled(units, shares, confidence),
        n=units.values.shape[0],
        draws=(None, None) if null.exact else (resamples, seed),
        left_out=tuple(left_out),
    )


def crossing_chance(
    metrics: Sequence[Contributions],
    margins: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> float:
    """Share of the joint flips in which any metric drifts by more than its margin, in sigma.

    It estimates how often an unchanged candidate that scatters like this one crosses a margin. The
    documents that metrics share flip together, so that metrics that move together count once.

    Raises:
        ValueError: for no metric, one without a unit, or another number of margins.
    """
    if not metrics or not all(metric.unit > 0.0 for metric in metrics):
        raise ValueError("judging metrics together needs metrics, each with a standard error")
    if len(margins) != len(metrics):
        raise ValueError(f"{len(metrics)} metrics need as many margins, got {len(margins)}")
    null = _Null(flip_units(metrics), np.full(len(metrics), 1.0 / len(metrics)))
    return null.crossing(np.asarray(margins, dtype=np.float64), resamples, seed)


def _judged(
    chosen: Sequence[Contributions],
    null: _Null,
    found: Array,
    *,
    pooled: Stratified,
    n: int,
    draws: tuple[int | None, int | None],
    left_out: tuple[tuple[Key, str], ...],
) -> AcrossTasks:
    """P-values from the null's statistics, ``found``, whose first row is the data's own."""
    p_values = _upper_shares(found)
    smallest = p_values.min(axis=1)
    estimate = pooled.estimate
    return AcrossTasks(
        metrics=tuple(metric.key for metric in chosen),
        tasks=len({metric.task for metric in chosen}),
        n=n,
        n_moved=null.moved,
        pooled_sigma=estimate.point,
        pooled_stderr=estimate.stderr,
        pooled_interval=(estimate.low, estimate.high),
        pooled_df=pooled.df,
        confidence=estimate.confidence,
        pooled_p_value=float(p_values[0, 0]),
        max_z=float(null.z[null.largest]),
        max_z_metric=chosen[null.largest].key,
        max_z_p_value=float(p_values[0, 1]),
        fisher=float(found[0, 2]),
        fisher_p_value=float(p_values[0, 2]),
        p_value=float(np.mean(smallest <= smallest[0])),
        resamples=draws[0],
        seed=draws[1],
        left_out=left_out,
    )


def _equal_tasks(metrics: Sequence[Contributions]) -> Array:
    """Weights of the metrics, summing to 1, that make every task count alike; shape (metrics,)."""
    tasks = [metric.task for metric in metrics]
    return np.array([1.0 / (len(set(tasks)) * tasks.count(task)) for task in tasks])


def _pooled(units: FlipUnits, shares: Array, confidence: float) -> Stratified:
    """The pooled drift and its standard error, stratified by tasks."""
    totals, residuals = units.values @ shares, units.residuals @ shares
    strata = [
        Stratum.of_residuals(totals[units.strata == stratum], residuals[units.strata == stratum])
        for stratum in np.unique(units.strata)
    ]
    return stratify_documents(strata, confidence=confidence)


class _Null:
    """The joint null: statistics of the data, and of the data with signs flipped."""

    def __init__(self, units: FlipUnits, shares: Array) -> None:
        values = units.values[np.any(units.values != 0.0, axis=1)]
        values = values[_order(values)]
        self.moved = values.shape[0]
        self.exact = 1 << self.moved if self.moved <= _MOST_ENUMERATED else None
        scale = np.sqrt(np.sum(np.square(values), axis=0))
        self._moves, self._scale = scale > 0.0, scale
        standard = np.where(self._moves, scale, 1.0)
        self._rows = sparse.csr_array((values / standard).T)
        together = float(np.sqrt(np.sum(np.square(values @ shares))))
        self._pooled = shares * scale / together if together > 0.0 else np.zeros_like(shares)
        self.z: Array = np.sum(values, axis=0) / standard

    @property
    def largest(self) -> int:
        """Which metric has the largest z, of those in which anything differs."""
        return int(np.argmax(np.where(self._moves | ~np.any(self._moves), self.z, -np.inf)))

    def statistics(self, resamples: int, seed: int) -> Array:
        """(pooled z, largest z, Fisher) of each pattern, the data's own first; shape (N, 3)."""
        chunks = self._enumerated() if self.exact else self._sampled(resamples, seed)
        return np.round(np.concatenate([self._of(signs) for signs in chunks]), _DECIMALS)

    def crossing(self, margins: Array, resamples: int, seed: int) -> float:
        """Share of the patterns in which a metric that moves is above its margin."""
        if self.moved == 0:
            return 0.0
        chunks = self._enumerated() if self.exact else self._sampled(resamples, seed)
        crossed, total = 0, 0
        for signs in chunks:
            drifts = np.round((self._rows @ signs) * self._scale[:, None], _DECIMALS)
            above = (drifts > np.round(margins, _DECIMALS)[:, None])[self._moves]
            crossed, total = crossed + int(np.sum(above.any(axis=0))), total + signs.shape[1]
        return crossed / total

    def _of(self, signs: Array) -> Array:
        z = self._rows @ signs
        moving = z[self._moves]
        if moving.shape[0] == 0:
            return np.zeros((signs.shape[1], 3))
        fisher = -2.0 * np.sum(special.log_ndtr(-moving), axis=0)
        return np.stack([self._pooled @ z, np.max(moving, axis=0), fisher], axis=1)

    def _enumerated(self) -> Iterator[Array]:
        patterns = np.arange(1 << self.moved)
        flipped = patterns[None, :] >> np.arange(self.moved)[:, None] & 1
        yield 1.0 - 2.0 * flipped.astype(np.float64)

    def _sampled(self, resamples: int, seed: int) -> Iterator[Array]:
        rng = np.random.default_rng(seed)
        yield np.ones((self.moved, 1))
        most = max(8, _ENTRIES_A_CHUNK // self.moved)
        for start in range(0, resamples, most):
            rows = min(most, resamples - start)
            drawn = rng.integers(0, 256, (self.moved, -(-rows // 8)), dtype=np.uint8)
            flipped = np.unpackbits(drawn, axis=1, count=rows).view(np.int8)
            yield (1 - 2 * flipped).astype(np.float64)


def _order(values: Array) -> NDArray[np.intp]:
    """An order of units by their values but for a common sign; see ``permutation.by_size``."""
    first = np.take_along_axis(values, np.argmax(values != 0.0, axis=1)[:, None], axis=1)
    return np.lexsort((values * np.sign(first)).T)


def _upper_shares(statistics: Array) -> NDArray[np.float64]:
    """Of each pattern and statistic, the share of patterns that have at least as much of it.

    The data's own pattern is one of them: (1 + #{T* >= T}) / (B + 1) for random patterns.
    """
    total = statistics.shape[0]
    shares = np.empty_like(statistics)
    for column, values in enumerate(statistics.T):
        below = np.searchsorted(np.sort(values), values, side="left")
        shares[:, column] = (total - below) / total
    return shares
