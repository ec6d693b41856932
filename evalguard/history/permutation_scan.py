"""The permutation scan: where a stretch of nights is best split in two, and how sure that is.

The model: night t has sigma x_t = mu(t) + s_t z_t, where mu is constant between change points, the
s_t are known up to a factor, and the z_t are exchangeable. The statistic of a split is the weighted
two-sample one, |mean_right - mean_left| / sqrt(1/W_left + 1/W_right) with weights 1/s_t^2 and W
their sums; the scan takes the largest over all splits that leave ``shortest`` nights on either side
(A. Sen, M. S. Srivastava, Ann. Statist. 3, 1975, 98-108). Its null comes from permuting the z_t,
which leaves every night its own error.

What the s_t are is not known: nights that draw other documents differ by their standard errors,
nights that ask the same ones may differ by something else. A change point has to be found with
both, s_t the night's standard error and s_t equal, each at the same level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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


def best_split(
    values: Floats, scales: Floats, level: float, rules: Rules, rng: np.random.Generator
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
    p = 0.0
    for assumed in _assumptions(scales):
        p = max(p, _p_value(values, assumed, level, rules.shortest, rng))
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
    values: Floats, scales: Floats, level: float, shortest: int, rng: np.random.Generator
) -> float:
    """Monte Carlo p-value, (1 + exceeding) / (1 + drawn), which keeps the test's size.

    Drawing ends early when the p-value can no longer come to the level (J. Besag, P. Clifford,
    Biometrika 78, 1991, 301-304).
    """
    most = most_drawn(level)
    allowed = level * (most + 1) - 1
    weights = 1.0 / np.square(scales)
    residuals = values - weighted_mean(values, weights)
    n = values.shape[0]
    rows = _FIRST_ROWS
    observed = float(np.max(_statistics(residuals[None, :], weights, shortest)))
    limit, z = observed * (1.0 - _ROUNDING), residuals / scales
    drawn = exceeding = 0
    while drawn < most and exceeding <= allowed:
        count = min(rows, most - drawn)
        permuted = rng.permuted(np.broadcast_to(z, (count, n)), axis=1) * scales
        largest = np.max(_statistics(permuted, weights, shortest), axis=1)
        exceeding += int(np.count_nonzero(largest >= limit))
        drawn += count
        rows = max(_FIRST_ROWS, min(2 * rows, _CHUNK // n))
    return (1 + exceeding) / (1 + drawn)
