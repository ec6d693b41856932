"""Where exactly a change point lies, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalguard.stats.series.levels import Floats
from evalguard.stats.series.permutation_scan import split_statistics, weighted_mean

CONFIDENCE = 0.95


def refine_location(
    values: Floats, weights: Floats, positions: Sequence[int], shortest: int
) -> tuple[int, ...]:
    """Move each change point to the best split between its neighbours, the first one first.

    Binary segmentation places a change point while others beside it are not yet known.
    """
    edges = [0, *positions, values.shape[0]]
    for place in range(1, len(edges) - 1):
        start, stop = edges[place - 1], edges[place + 1]
        statistics = split_statistics(values[start:stop], weights[start:stop], shortest)
        edges[place] = start + shortest + int(np.argmax(statistics))
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
    left = 0.0
    for place in range(stretches):
        part = slice(edges[place], edges[place + 1])
        off = values[part] - weighted_mean(values[part], weights[part])
        left += float(np.sum(weights[part] * np.square(off)))
    return math.sqrt(left / (n - stretches))
