"""Change points of sigma over nights: where its level moved for good.

Several are found by binary segmentation (L. Vostrikova, Sov. Math. Dokl. 24, 1981, 55-59) with
the permutation scan. A stretch of m of n nights is tested at level alpha m / n: the stretches
without a change point that are tested first do not overlap, so that the chance of any false one
is at most alpha.

Nights that follow each other may be alike (a slow machine, a candidate that moves a little each
night), and exchangeable they are not then. So the scan is of nights that were prewhitened with
their lag-1 correlation, estimated around the levels with and without the split in question.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Sigma over a stretch of nights without a change point: a weighted mean, its standard error.

    ``stderr`` is of what was seen to vary between nights; documents that all nights share add none.
    """

    start: int
    stop: int
    mean: float
    stderr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A night from which on sigma has another level.

    Attributes:
        position: of the first night of the new level, counted from 0; ``earliest`` and ``latest``
            are where it may lie at 95% confidence.
        before, after: the levels, up to the neighbouring change points.
        p_value: of the split, in the stretch where it was found; ``level`` what it was held to.
    """

    position: int
    earliest: int
    latest: int
    before: Level
    after: Level
    p_value: float
    level: float

    @property
    def step(self) -> float:
        """By how much sigma moved; positive is worse."""
        return self.after.mean - self.before.mean

    @property
    def stderr(self) -> float:
        """Standard error of the step."""
        return math.hypot(self.before.stderr, self.after.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Change points of a series, in order.

    Attributes:
        levels: one more than there are change points; () for no nights.
        alpha: chance of any false change point.
        smallest_step: smaller ones are not looked for.
        seed: of the permutations.
        correlation: of a night with the next around the levels, as far as it is seen (0 below 3
            standard errors); the levels' standard errors and ranges count it.
    """

    points: tuple[ChangePoint, ...]
    levels: tuple[Level, ...]
    n: int
    alpha: float
    shortest: int
    smallest_step: float
    seed: int
    correlation: float = 0.0


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
    residuals = np.concatenate([values[a:b] - np.mean(values[a:b]) for a, b in pairwise(edges)])
    squares = float(np.sum(np.square(residuals)))
    if squares == 0.0:
        return 0.0
    correlation = float(np.sum(residuals[1:] * residuals[:-1])) / squares
    correlation += (_LOST + _LOST_BY_CORRELATION * correlation) / n
    return float(min(max(correlation, 0.0), _MOST_CORRELATED))


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
    before, after = slice(position), slice(position, n)
    step = weighted_mean(values[after], weights[after]) - weighted_mean(
        values[before], weights[before]
    )
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
    allowed = slice(shortest - 1, n - shortest)
    left_weights = np.cumsum(weights)[allowed]
    total = float(np.sum(weights))
    sums = np.cumsum(residuals * weights, axis=1)
    whole = sums[:, -1:]
    lefts = sums[:, allowed]
    # mean_right - mean_left, over its standard error, in sums of weights.
    difference = (whole - lefts) / (total - left_weights) - lefts / left_weights
    return np.asarray(np.abs(difference) * np.sqrt(left_weights * (total - left_weights) / total))


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


CONFIDENCE = 0.95


def refine_location(
    values: Floats, weights: Floats, positions: Sequence[int], shortest: int
) -> tuple[int, ...]:
    """Move each change point to the best split between its neighbours, the first one first.

    Binary segmentation places a change point while others beside it are not yet known.
    """
    edges = [0, *positions, values.shape[0]]
    for index in range(1, len(edges) - 1):
        start, stop = edges[index - 1], edges[index + 1]
        statistics = split_statistics(values[start:stop], weights[start:stop], shortest)
        edges[index] = start + shortest + int(np.argmax(statistics))
    return tuple(edges[1:-1])


def location_range(
    values: Floats, weights: Floats, stretch: tuple[int, int, int], spread: float, shortest: int
) -> tuple[int, int]:
    """First and last position that a change point may have, at 95% confidence.

    The positions whose likelihood ratio to the best is at most -2 ln(1 - sqrt(confidence)), in the
    stretch between the neighbouring change points, errors normal with a variance of spread^2 / w
    (D. Siegmund, Technometrics 30, 1988, 31-48).

    Args:
        stretch: where it begins, the change point, where it ends.
    """
    start, position, stop = stretch
    if spread == 0.0:
        return position, position
    squares = np.square(split_statistics(values[start:stop], weights[start:stop], shortest))
    best = squares[position - start - shortest]
    allowed = -2.0 * math.log(1.0 - math.sqrt(CONFIDENCE)) * spread**2
    near = np.flatnonzero(best - squares <= allowed) + start + shortest
    return int(min(near[0], position)), int(max(near[-1], position))


def spread_within(values: Floats, weights: Floats, edges: Sequence[int]) -> float:
    """The factor of the s_t: root mean square of what is left of z within the levels.

    Args:
        edges: 0, the change points, n.
    """
    n, stretches = values.shape[0], len(edges) - 1
    if n <= stretches:
        return 1.0
    squares = 0.0
    for index in range(stretches):
        part = slice(edges[index], edges[index + 1])
        off = values[part] - weighted_mean(values[part], weights[part])
        squares += float(np.sum(weights[part] * np.square(off)))
    return math.sqrt(squares / (n - stretches))


SHORTEST = 3
SMALLEST_STEP = 0.02
SEED = 20_261_120
# No night counts more than 100 times the median one: errors of 0 stand for bit-identical scores.
_SMALLEST_SHARE = 0.1


def change_points(
    values: Floats,
    stderrs: Floats,
    *,
    alpha: float = 0.05,
    shortest: int = SHORTEST,
    smallest_step: float = SMALLEST_STEP,
    seed: int = SEED,
) -> Scan:
    """Find where the level of a series moved.

    Args:
        values: sigma of each night, finite, shape (n,), in order of time.
        stderrs: their standard errors, finite and not negative, shape (n,).
        alpha: chance of any false change point, over the permutations.
        shortest: nights that a level must hold.
        smallest_step: a smaller step is none, however sure.

    Raises:
        ValueError: for numbers that are not finite, or an impossible alpha.
    """
    if not (np.all(np.isfinite(values)) and np.all(np.isfinite(stderrs)) and np.all(stderrs >= 0)):
        raise ValueError("change points need finite values and standard errors, 0 or more")
    if values.shape != stderrs.shape or not 0.0 < alpha < 1.0 or shortest < 1:
        raise ValueError(f"impossible: {values.shape}, {stderrs.shape}, {alpha=}, {shortest=}")
    n = values.shape[0]
    scales = _scales(stderrs)
    rules = Rules(alpha, shortest, smallest_step, seed)
    rng = np.random.default_rng(seed)
    splits: dict[int, tuple[float, float]] = {}
    stretches = [(0, n)]
    while stretches:
        start, stop = stretches.pop()
        level = alpha * (stop - start) / n if n else alpha
        stretch = slice(start, stop)
        around = Whole(values, start, tuple(splits))
        split = best_split(values[stretch], scales[stretch], level, rules, rng, around)
        if split is not None:
            position = start + split[0]
            splits[position] = split[1], level
            stretches += [(position, stop), (start, position)]
    return _scan(values, scales, splits, rules)


def _scales(stderrs: Floats) -> Floats:
    """s_t by the standard errors, up to a factor, shape (n,), above 0."""
    if not np.any(stderrs > 0.0):
        return np.ones_like(stderrs)
    usual = float(np.median(stderrs[stderrs > 0.0]))
    return np.asarray(np.maximum(stderrs / usual, _SMALLEST_SHARE))


def _scan(
    values: Floats, scales: Floats, found: Mapping[int, tuple[float, float]], rules: Rules
) -> Scan:
    weights = 1.0 / np.square(scales)
    positions = refine_location(values, weights, sorted(found), rules.shortest)
    edges = (0, *positions, values.shape[0])
    correlation = nightly_correlation(values, positions)
    if correlation < SHOWN_CORRELATION / math.sqrt(max(values.shape[0], 1)):
        correlation = 0.0
    # A mean of autoregressive nights varies as if there were (1 - rho) / (1 + rho) of them.
    spread = spread_within(values, weights, edges)
    spread *= math.sqrt((1.0 + correlation) / (1.0 - correlation))
    levels = tuple(
        Level(
            start=start,
            stop=stop,
            mean=weighted_mean(values[start:stop], weights[start:stop]),
            stderr=spread / math.sqrt(float(np.sum(weights[start:stop]))),
        )
        for start, stop in pairwise(edges)
        if stop > start
    )
    points = []
    for index, (p_value, level) in enumerate(found[old] for old in sorted(found)):
        stretch = (edges[index], edges[index + 1], edges[index + 2])
        earliest, latest = location_range(values, weights, stretch, spread, rules.shortest)
        points.append(
            ChangePoint(
                position=stretch[1],
                earliest=earliest,
                latest=latest,
                before=levels[index],
                after=levels[index + 1],
                p_value=p_value,
                level=level,
            )
        )
    return Scan(
        points=tuple(points),
        levels=levels,
        n=values.shape[0],
        alpha=rules.alpha,
        shortest=rules.shortest,
        smallest_step=rules.smallest_step,
        seed=rules.seed,
        correlation=correlation,
    )
