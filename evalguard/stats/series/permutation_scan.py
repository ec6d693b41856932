"""The permutation scan: where a stretch of nights is best split in two, and how sure that is.

The model: night t has sigma x_t = mu(t) + s_t z_t, where mu is constant between change points,
the s_t are known up to a factor, and the z_t are exchangeable. The statistic of a split is the
weighted two-sample one, |mean_right - mean_left| / sqrt(1/W_left + 1/W_right) with weights
1/s_t^2 and W their sums; the scan takes the largest over all splits that leave ``shortest``
nights on either side (A. Sen, M. S. Srivastava, Ann. Statist. 3, 1975, 98-108). Its null comes
from permuting the z_t, which leaves every night its own error.

What the s_t are is not known: nights that draw other documents differ by their standard errors,
nights that ask the same ones may differ by something else. A change point has to be found with
both, s_t the night's standard error and s_t equal, each at the same level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evalguard.stats.series.levels import Floats

# What estimating costs: levels that are fitted, and the best of all splits among them, take slow
# movement away, so that the lag-1 correlation r comes out too small by about (4 + 14 r) / n (by
# simulation of 60 and 120 nights; 1 + 4 r for one known mean, M. G. Kendall, Biometrika 41, 1954,
# 403-404). Autoregressive nights with 0 to 0.8 alarm in 5% to 11% then (docs/history.md).
_LOST, _LOST_BY_CORRELATION = 4.0, 14.0
_MOST_CORRELATED = 0.95
# A jump between two nights of so many robust standard deviations is a step, and no noise.
_SHARP = 5.0
_NORMAL_MAD = 1.4826
SHOWN_CORRELATION = 3.0  # standard errors, 1 / sqrt(n) each
_ENOUGH_EXCEEDING = 20
_FEWEST, _USUAL_MOST = 999, 39_999
# A strict level gets as many as it takes to come below it: the test keeps its size with any number,
# and loses little where hardly a permutation exceeds.
_MOST, _LEAST_EXCEEDING = 3_999_999, 2
_FIRST_ROWS, _CHUNK = 100, 200_000
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Rules:
    """What a change point is: see ``change_points``."""

    alpha: float
    shortest: int
    smallest_step: float
    seed: int


@dataclass(frozen=True, slots=True)
class Whole:
    """The series that a stretch is part of: where the stretch starts, and what was found so far."""

    values: Floats
    start: int
    found: tuple[int, ...]

    def correlation(self, position: int) -> float:
        """Of neighbouring nights, around the levels with a split at this night of the stretch."""
        return nightly_correlation(self.values, (*self.found, self.start + position))


def nightly_correlation(values: Floats, positions: Sequence[int]) -> float:
    """Correlation of each night with the next around levels, from 0 to 0.95.

    Sharp jumps count as steps whether they were found or not, so that a series with several is not
    taken for a slow one; where half of the nights or more repeat the one before, it is 0.

    Args:
        values: shape (n,); ``positions``: where a level begins, the first one left out.
    """
    jumps = np.diff(values)
    if jumps.shape[0] < 2:
        return 0.0
    usual = _NORMAL_MAD * float(np.median(np.abs(jumps - np.median(jumps))))
    if usual == 0.0:
        return 0.0
    n = values.shape[0]
    sharp = np.flatnonzero(np.abs(jumps) > _SHARP * usual) + 1
    edges = sorted({0, n, *positions, *sharp.tolist()})
    left = np.concatenate([values[a:b] - np.mean(values[a:b]) for a, b in pairwise(edges)])
    squares = float(np.sum(np.square(left)))
    if squares == 0.0:
        return 0.0
    found = float(np.sum(left[1:] * left[:-1])) / squares
    found += (_LOST + _LOST_BY_CORRELATION * found) / n
    return float(min(max(found, 0.0), _MOST_CORRELATED))


def best_split(
    values: Floats,
    scales: Floats,
    level: float,
    rules: Rules,
    rng: np.random.Generator,
    around: Whole,
) -> tuple[int, float] | None:
    """The best split of a stretch and its p-value; None where it is not below the level."""
    n = values.shape[0]
    if n < 2 * rules.shortest:
        return None
    weights = 1.0 / np.square(scales)
    statistics = split_statistics(values, weights, rules.shortest)
    position = int(np.argmax(statistics)) + rules.shortest
    left, right = slice(position), slice(position, n)
    step = weighted_mean(values[right], weights[right]) - weighted_mean(values[left], weights[left])
    if abs(step) < rules.smallest_step:
        return None
    p, correlation = 0.0, around.correlation(position)
    for assumed in _assumptions(scales):
        p = max(p, _p_value(values, assumed, level, rules.shortest, rng, correlation))
        if p > level:
            return None
    return position, p


def _assumptions(scales: Floats) -> tuple[Floats, ...]:
    """What the nights may vary by: their standard errors, and all alike."""
    equal = np.ones_like(scales)
    return (scales,) if bool(np.all(scales == scales[0])) else (scales, equal)


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Mean with these weights, above 0; both shape (n,)."""
    return float(np.sum(values * weights) / np.sum(weights))


def split_statistics(values: Floats, weights: Floats, shortest: int) -> Floats:
    """The statistic of every split, the first one after ``shortest`` nights; values: shape (n,)."""
    residuals = values - weighted_mean(values, weights)
    return np.asarray(_statistics(residuals[None, :], weights, shortest)[0])


def _statistics(residuals: Floats, weights: Floats, shortest: int) -> Floats:
    """The statistic of every split, shape (rows, n - 2 shortest + 1)."""
    n = weights.shape[0]
    kept = slice(shortest - 1, n - shortest)
    left = np.cumsum(weights)[kept]
    total = float(np.sum(weights))
    sums = np.cumsum(residuals * weights, axis=1)
    whole = sums[:, -1:]
    lefts = sums[:, kept]
    # mean_right - mean_left, over its standard error, in sums of weights.
    difference = (whole - lefts) / (total - left) - lefts / left
    return np.asarray(np.abs(difference) * np.sqrt(left * (total - left) / total))


def most_drawn(level: float) -> int:
    """How many permutations a test at a level draws at most: none is found below 2.5e-7."""
    usual = min(_USUAL_MOST, max(_FEWEST, math.ceil(_ENOUGH_EXCEEDING / level)))
    return min(_MOST, max(usual, math.ceil(_LEAST_EXCEEDING / level)))


def _p_value(
    values: Floats,
    scales: Floats,
    level: float,
    shortest: int,
    rng: np.random.Generator,
    correlation: float,
) -> float:
    """Monte Carlo p-value, (1 + exceeding) / (1 + drawn), which keeps the test's size.

    Drawing ends early when the p-value can no longer come to the level (J. Besag, P. Clifford,
    Biometrika 78, 1991, 301-304). With a correlation rho the nights are prewhitened first, e_t =
    z_t - rho z_(t-1): a step of z is one of e, by 1 - rho times as much.
    """
    most = most_drawn(level)
    allowed = level * (most + 1) - 1
    weights = 1.0 / np.square(scales)
    z = (values - weighted_mean(values, weights)) / scales
    if correlation > 0.0:
        first = math.sqrt(1.0 - correlation**2) * z[:1]
        z = np.concatenate([first, z[1:] - correlation * z[:-1]])
    n = values.shape[0]
    rows = _FIRST_ROWS
    observed = float(np.max(_statistics((z * scales)[None, :], weights, shortest)))
    limit = observed * (1.0 - _ROUNDING)
    drawn = exceeding = 0
    while drawn < most and exceeding <= allowed:
        count = min(rows, most - drawn)
        permuted = rng.permuted(np.broadcast_to(z, (count, n)), axis=1) * scales
        largest = np.max(_statistics(permuted, weights, shortest), axis=1)
        exceeding += int(np.count_nonzero(largest >= limit))
        drawn += count
        rows = max(_FIRST_ROWS, min(2 * rows, _CHUNK // n))
    return (1 + exceeding) / (1 + drawn)
