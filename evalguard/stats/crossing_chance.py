"""How often an unchanged candidate would cross any of several margins, by joint sign flips.

An unchanged candidate wins a document by as much as it loses one, in all metrics at once. Flipping
the sign of a document in every metric together keeps their dependence, so that metrics of one
task, or the same metric twice, count for no more than they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.contributions import Contributions
from evalguard.stats.flip_units import flip_units
from evalguard.stats.moments import Array
from evalguard.stats.sign_flip import RESAMPLES, SEED

# All patterns of so few units are no more than the random ones that would be drawn.
_MOST_ENUMERATED = 13
_ENTRIES_A_CHUNK = 1 << 21
# Drifts that are equal but for rounding count as equal.
_DECIMALS = 9


def crossing_chance(
    metrics: Sequence[Contributions],
    margins: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> float:
    """Share of the joint flips in which any metric drifts by more than its margin, in sigma.

    It estimates how often an unchanged candidate that scatters like this one crosses a margin. The
    documents that metrics share flip together, so that metrics that move together count once. All
    patterns of at most 13 units that differ, else random ones, in chunks: memory does not grow
    with their number.

    Raises:
        ValueError: for no metric, one without a unit, or another number of margins.
    """
    if not metrics or not all(metric.unit > 0.0 for metric in metrics):
        raise ValueError("judging metrics together needs metrics, each with a standard error")
    if len(margins) != len(metrics):
        raise ValueError(f"{len(metrics)} metrics need as many margins, got {len(margins)}")
    from scipy import sparse  # as in flip_units

    values = flip_units(metrics).values
    values = values[np.any(values != 0.0, axis=1)]
    if values.shape[0] == 0:
        return 0.0
    moves = np.any(values != 0.0, axis=0)
    values = values[_order(values)]
    rows = sparse.csr_array(values[:, moves].T)
    limits = np.round(np.asarray(margins, dtype=np.float64)[moves], _DECIMALS)[:, None]
    crossed, total = 0, 0
    for signs in _patterns(values.shape[0], resamples, seed):
        above = np.round(rows @ signs, _DECIMALS) > limits
        crossed, total = crossed + int(np.sum(above.any(axis=0))), total + signs.shape[1]
    return crossed / total


def _patterns(units: int, resamples: int, seed: int) -> Iterator[Array]:
    """Signs of the units, (units, patterns) a chunk; the data's own first among random ones."""
    if units <= _MOST_ENUMERATED:
        flipped = np.arange(1 << units)[None, :] >> np.arange(units)[:, None] & 1
        yield 1.0 - 2.0 * flipped.astype(np.float64)
        return
    rng = np.random.default_rng(seed)
    yield np.ones((units, 1))
    most = max(8, _ENTRIES_A_CHUNK // units)
    for start in range(0, resamples, most):
        rows = min(most, resamples - start)
        drawn = rng.integers(0, 256, (units, -(-rows // 8)), dtype=np.uint8)
        flipped = np.unpackbits(drawn, axis=1, count=rows).view(np.int8)
        yield (1 - 2 * flipped).astype(np.float64)


def _order(values: Array) -> NDArray[np.intp]:
    """An order of units by their values but for a common sign, so that none else matters."""
    first = np.take_along_axis(values, np.argmax(values != 0.0, axis=1)[:, None], axis=1)
    return np.lexsort((values * np.sign(first)).T)
