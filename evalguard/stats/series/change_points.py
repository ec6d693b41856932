"""Change points of sigma over nights: where its level moved for good.

Several are found by binary segmentation (L. Vostrikova, Sov. Math. Dokl. 24, 1981, 55-59) with
the permutation scan. A stretch of m of n nights is tested at level alpha m / n: the stretches
without a change point that are tested first do not overlap, so that the chance of any false one
is at most alpha.

Nights that follow each other may be alike (a slow machine, a candidate that moves a little each
night), and exchangeable they are not then. So the scan is of nights that were prewhitened with
their lag-1 correlation, estimated around the levels with and without the split in question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from evalguard.stats.series.change_location import location_range, refine_location, spread_within
from evalguard.stats.series.levels import ChangePoint, Floats, Level, Scan
from evalguard.stats.series.permutation_scan import (
    SHOWN_CORRELATION,
    Rules,
    Whole,
    best_split,
    nightly_correlation,
    weighted_mean,
)

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
    found: dict[int, tuple[float, float]] = {}
    stretches = [(0, n)]
    while stretches:
        start, stop = stretches.pop()
        level = alpha * (stop - start) / n if n else alpha
        stretch = slice(start, stop)
        around = Whole(values, start, tuple(found))
        split = best_split(values[stretch], scales[stretch], level, rules, rng, around)
        if split is not None:
            position = start + split[0]
            found[position] = split[1], level
            stretches += [(position, stop), (start, position)]
    return _scan(values, scales, found, rules)


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
    for place, (p_value, level) in enumerate(found[old] for old in sorted(found)):
        stretch = (edges[place], edges[place + 1], edges[place + 2])
        earliest, latest = location_range(values, weights, stretch, spread, rules.shortest)
        points.append(
            ChangePoint(
                position=stretch[1],
                earliest=earliest,
                latest=latest,
                before=levels[place],
                after=levels[place + 1],
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
