"""Change points of sigma over nights: where its level moved for good.

Several are found by binary segmentation (L. Vostrikova, Sov. Math. Dokl. 24, 1981, 55-59) with the
permutation scan. A stretch of m of n nights is tested at level alpha m / n: the stretches without
a change point that are tested first do not overlap, so that the chance of any false one is at most
alpha.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evalguard.history.level import ChangePoint, Level, Scan
from evalguard.history.permutation_scan import Rules, best_split, weighted_mean

Floats = NDArray[np.float64]

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
        split = best_split(values[start:stop], scales[start:stop], level, rules, rng)
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
    values: Floats,
    scales: Floats,
    found: dict[int, tuple[float, float]],
    rules: Rules,
) -> Scan:
    n = values.shape[0]
    edges = [0, *sorted(found), n]
    weights = 1.0 / np.square(scales)
    spread = _spread(values, weights, edges)
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
    points = tuple(
        ChangePoint(
            position=position,
            before=levels[place],
            after=levels[place + 1],
            p_value=found[position][0],
            level=found[position][1],
        )
        for place, position in enumerate(sorted(found))
    )
    return Scan(
        points=points,
        levels=levels,
        n=n,
        alpha=rules.alpha,
        shortest=rules.shortest,
        smallest_step=rules.smallest_step,
        seed=rules.seed,
    )


def _spread(values: Floats, weights: Floats, edges: list[int]) -> float:
    """The factor of the s_t: root mean square of what is left of z within the levels."""
    n, stretches = values.shape[0], len(edges) - 1
    if n <= stretches:
        return 1.0
    left = [
        weights[a:b] * np.square(values[a:b] - weighted_mean(values[a:b], weights[a:b]))
        for a, b in pairwise(edges)
    ]
    return math.sqrt(float(np.sum(np.concatenate(left))) / (n - stretches))
