"""All metrics together: one joint sign-flip null for pooled drift, max-z and Fisher's statistic.

Under the null an unchanged candidate wins a document by as much as it loses one, in all metrics
at once. Flipping the sign of a document in every metric together keeps their dependence, so that
metrics of one task, or the same metric twice, count for no more than they say.

A metric's z = sum c / sqrt(sum c^2), c the contributions of the units, is studentised, and its
denominator is the same under every flip: one matrix product gives all resampled z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.core.across_tasks import AcrossTasks, Key
from evalguard.stats.contributions import Contributions
from evalguard.stats.flip_units import FlipUnits, flip_units
from evalguard.stats.moments import Array
from evalguard.stats.sign_flip import RESAMPLES, SEED
from evalguard.stats.strata import Stratified, Stratum, stratify_documents

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
        from scipy import sparse  # as in flip_units

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
