"""Weights that were rescaled by rows and columns before they were quantised (AWQ, SmoothQuant).

Such factors change a weight far beyond its format, and no answer where another tensor takes them
back: the norm before it, or the rows of the weight before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_ROUNDS = 4
_LEFT = 0.7  # of what one factor of all leaves: what is left of a difference that these explain
_LEAST = 0.01  # standard deviation of their logarithms; below it a scale was rounded
_TIMES = 2.0  # times what a rounding alone makes of it
_ALIKE, _APART = 0.03, 0.15  # of a factor that takes another back: usually, and in nearly all


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFactors:
    """What the base is multiplied with to look like the candidate.

    Attributes:
        columns: (columns,) factors; rows: (rows,), None where they are all 1.
        rows: (rows,) factors.
    """

    columns: Array
    rows: Array | None

    @property
    def words(self) -> str:
        """Which, and from least to most: "columns by 0.5 to 2.1"."""
        parts = []
        for name, factors in (("columns", self.columns), ("rows", self.rows)):
            if factors is not None and _spread(factors) > _LEAST:
                parts.append(f"{name} by {factors.min():.3g} to {factors.max():.3g}")
        return ", ".join(parts)


def find_channel_factors(base: Array, candidate: Array) -> ChannelFactors | None:
    """Return the factors of rows and columns that explain most of a difference; None if none do.

    Least squares in turn for columns and rows.

    Args:
        base, candidate: (rows, columns), some rows of a weight and of its dequantised one.
    """
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    if min(ours.shape) < 16 or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    rows, columns = np.ones(len(ours)), np.ones(ours.shape[1])
    for _ in range(_ROUNDS):
        columns = _solve(ours * rows[:, None], theirs, axis=0)
        rows = _solve(ours * columns, theirs, axis=1)
        middle = float(np.median(rows))
        if middle <= 0:
            return None
        rows, columns = rows / middle, columns * middle
    if columns.min() <= 0 or rows.min() <= 0:
        return None
    whole = float(np.sum(ours * theirs) / np.sum(ours * ours))  # of clipping
    left = float(np.sum((theirs - ours * rows[:, None] * columns) ** 2))
    if left > _LEFT * float(np.sum((theirs - whole * ours) ** 2)):
        return None
    few = _spread(rows) <= 2 * _LEAST
    if few:
        columns = _solve(ours, theirs, axis=0)
    chance = _spread_by_chance(ours * rows[:, None], theirs, columns)
    if _spread(columns) <= max(_LEAST, _TIMES * chance):
        return None  # of rows alone are scales that were exchanged
    return ChannelFactors(columns=columns, rows=None if few else rows)


def solve_rows(base: Array, candidate: Array, columns: Array) -> Array:
    """Return the factor of each row, once its columns are multiplied with theirs."""
    return _solve(base.astype(np.float64) * columns, candidate.astype(np.float64), axis=1)


def take_back(ratio: Array, factors: Array) -> bool:
    """Whether a tensor's ratio to the base's takes factors back, or is they: element by element."""
    if ratio.shape != factors.shape or not np.isfinite(ratio).all() or ratio.min() <= 0:
        return False
    apart = np.abs(np.log(ratio * factors))
    return bool(np.median(apart) < _ALIKE and np.quantile(apart, 0.98) < _APART)


def _solve(ours: Array, theirs: Array, *, axis: int) -> Array:
    squares = np.sum(ours * ours, axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.sum(ours * theirs, axis=axis) / squares
    return np.where(squares > 0, found, 1.0)


def _spread_by_chance(ours: Array, theirs: Array, columns: Array) -> float:
    """Return how far the factors of columns would be spread by what they leave alone."""
    rest = theirs - ours * columns
    squares = np.sum(ours * ours, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(np.sum((ours * rest) ** 2, axis=0)) / squares / columns
    return float(np.sqrt(np.mean(np.nan_to_num(errors, posinf=0.0) ** 2)))


def _spread(factors: Array) -> float:
    return float(np.std(np.log(np.maximum(factors, 1e-12))))
