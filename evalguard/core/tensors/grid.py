"""Whether plain numbers lie on an integer grid: how a quantised tensor looks that is stored as
floats, whoever quantised it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.precision import Family

Array = NDArray[Any]

# Widest first: numbers on one grid a tensor lie on one a row as well.
_WIDTHS = ((-1, "per tensor"), (0, "per row"), (128, "groups of 128"), (64, "groups of 64"),
           (32, "groups of 32"), (16, "groups of 16"))  # fmt: skip
_OFF = 0.08  # of a step: what float32 and bfloat16 leave of few levels
_MOST_LEVELS = 256
_LEAST_DISTINCT = 6  # numbers of a group; fewer lie on some grid by chance
_FAMILIES: tuple[tuple[int, Family], ...] = (
    (9, "int3"), (17, "int4"), (33, "int5"), (65, "int6"), (_MOST_LEVELS, "int8"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGrid:
    """The grid on which numbers lie.

    Attributes:
        group: elements that share a step; 0: those of a row, -1: all.
        levels: of the widest group.
        step: the median one.
        detail: "per row", "groups of 32".
    """

    family: Family
    group: int
    levels: int
    step: float
    detail: str


def infer_grid(rows: Array) -> ValueGrid | None:
    """Return the grid on which whole rows of a tensor lie, with the widest groups that fit."""
    for group, detail in _WIDTHS:
        width = {-1: rows.size, 0: rows.shape[1]}.get(group, group)
        if (width > rows.shape[1] and group > 0) or width < 8 or rows.size % width:
            continue
        if group > 0 and rows.shape[1] % width:
            continue
        steps, levels = fit_steps(rows.reshape(-1, width))
        known = levels > 0
        if known.any() and (steps[known] > 0).mean() >= 0.95:
            most = int(levels[known & (steps > 0)].max())
            family = next(name for top, name in _FAMILIES if most <= top)
            step = float(np.median(steps[known & (steps > 0)]))
            return ValueGrid(family=family, group=group, levels=most, step=step, detail=detail)
    return None


def fit_steps(groups: Array) -> tuple[Array, Array]:
    """Return the step of each group and the number of its levels.

    The step is 0 where no grid of at most 256 levels fits; the number of levels is 0 where so few
    different numbers are there that nothing can be said.
    """
    ordered = np.sort(groups.astype(np.float64), axis=1)
    gaps = np.diff(ordered, axis=1)
    size = np.abs(groups).max(axis=1, initial=0).astype(np.float64)
    gaps = np.where(gaps < 1e-6 * size[:, None], 0.0, gaps)
    distinct = np.count_nonzero(gaps, axis=1) + 1
    smallest = np.where(gaps > 0, gaps, np.inf).min(axis=1)
    spread = ordered[:, -1] - ordered[:, 0]
    steps = np.zeros(len(groups))
    levels = np.where(distinct < _LEAST_DISTINCT, 0, -1)
    for part in (1, 2, 3, 4):  # the smallest gap may be of some steps
        with np.errstate(all="ignore"):
            step = smallest / part
            wide = spread / step + 1 <= _MOST_LEVELS + 0.5
            ratio = gaps / step[:, None]
            whole = np.rint(ratio)
            good = wide & (np.abs(ratio - whole) < _OFF * np.maximum(1, whole / 16)).all(axis=1)
            good &= (levels != 0) & (steps == 0)
            fine = (gaps * whole).sum(axis=1) / (whole * whole).sum(axis=1)
        steps[good] = fine[good]
        levels[good] = np.rint(spread[good] / fine[good]).astype(int) + 1
    levels[levels < 0] = _MOST_LEVELS
    return steps, np.minimum(levels, _MOST_LEVELS)
