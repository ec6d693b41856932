"""Whether plain numbers lie on a grid: how a quantised tensor looks that is stored as floats,
whoever quantised it.

A group of numbers lies on a grid where they are whole steps apart, or where few different ones are
each there several times. A grid explains a difference where every number is within a step or so of
the base's, which does not lie on such a grid itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moved_codes import find_moved_scales, rolled_text
from evalguard.core.precision_vote import BFLOAT16_BITS
from evalguard.core.tensor_edits import LEAST_PRUNED, find_pruned
from evalguard.core.tensor_structure import StructureFault, shift_text

Array = NDArray[Any]
Sharing = Literal["tensor", "row", "column", "group", "mantissa"]
_MOST_ROWS = 256  # of a matrix are looked at
# A group that is taken for a part of it has too small a step, and healthy elements are beyond it.
_GROUPS = range(128, 15, -16)
_LEAST_WIDTH = 8  # numbers of a group, and of a column twice as many
_FEW_ROWS = 2 * _LEAST_WIDTH  # on no grid: neither are more
_MOST_LEVELS = 256
_OFF = 0.08  # of a step: what float32 and bfloat16 leave of few levels
_LEAST_DISTINCT = 6  # numbers of a group, none of them twice; fewer lie on some grid by chance
_MOST_GROUPS = 0.95  # of those that say anything are on it
_FAR_OFF = 0.9  # of the base's norm: a rounding to one bit leaves 0.6 of it
_NEAREST = 0.55  # of a step
_FAR_FROM_ZERO = 1.5  # steps: farther than quantisers move errors
_WHOLE_STEP = 0.25  # of a group's middle error from one: cutting numbers off leaves half a step
_LEFT = 0.25  # of its squared error, once the steps are taken off: a rounding leaves 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The grid on which a matrix's numbers lie.

    Attributes:
        bits: that tell its levels apart; of "mantissa", those that each number needs.
        shared: which numbers share a scale.
        group: how many of a row those of "group" are.
        even: whether the levels are a step apart; else they are any few numbers.
        nearest: whether each number is the base's nearest level; False where no base is known.
        steps: of each column, where a column shares them; else the median one.
    """

    bits: int
    shared: Sharing
    group: int = 0
    even: bool = True
    nearest: bool = False
    steps: Array = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The class of precision: "int4"; "4 bits" of uneven levels, "3 bits of mantissa"."""
        if self.shared == "mantissa" or not self.even:
            kind = " of mantissa" if self.shared == "mantissa" else ""
            return f"{self.bits} bit{'' if self.bits == 1 else 's'}{kind}"
        return f"int{8 if self.bits == 7 else self.bits}"

    @property
    def sharing(self) -> str:
        """How scales are shared: "per row", "groups of 32"; "" of a mantissa."""
        if self.shared == "mantissa":
            return ""
        return f"groups of {self.group}" if self.shared == "group" else f"per {self.shared}"

    def __str__(self) -> str:
        if not self.sharing:
            return self.name
        return f"{self.bits} bit{'' if self.bits == 1 else 's'} ({self.sharing})"


def find_grid(values: Array) -> Grid | None:
    """Find the grid that a matrix's numbers lie on; None: on none of 8 bits or fewer.

    Of two, that of fewer bits; a wider one may need a bit more, for its parts may use less of it.

    Args:
        values: (rows, ...), or some of its rows; the first 256 of them are looked at.
    """
    rows = _as_rows(values)
    if rows is None:
        return None
    best: Grid | None = None
    for shared, group, numbers in _share(rows):
        grid = _fit_grid(shared, group, numbers)
        if grid is not None and (best is None or grid.bits < best.bits - best.even):
            best = grid
        if best is not None and best.even and best.shared == "tensor":
            break
    mantissa = max(_count_mantissa(rows), 1)
    if mantissa < BFLOAT16_BITS and (best is None or mantissa < best.bits):
        step = np.array([2.0**-mantissa])
        return Grid(bits=mantissa, shared="mantissa", even=False, steps=step)
    return best


def explain_by_grid(base: Array, candidate: Array) -> Grid | None:
    """Find the grid to which the candidate looks rounded; None where none explains the difference.

    Args:
        base, candidate: of one shape: a matrix, or some of its rows.
    """
    ours, theirs = _as_rows(base), _as_rows(candidate)
    if ours is None or theirs is None:
        return None
    grid = find_grid(theirs)
    if grid is None:
        return None
    own = find_grid(ours)
    if own is not None and own.bits <= grid.bits:
        return None
    difference = np.abs(theirs - ours)
    if np.linalg.norm(difference) >= _FAR_OFF * np.linalg.norm(ours):
        return None
    # a permuted or shifted matrix lies on its grid too, and one with the scales of others
    steps, seen = _measure_steps(grid, ours, theirs)
    if np.median(difference - steps) > 0 or _measure_shifts(grid, ours, theirs, steps).any():
        return None
    if _find_rolled_scales(grid, ours, theirs) is not None:
        return None
    # zeros where the base is far from it were made by no rounding
    lost = np.mean((theirs == 0) & (difference > _FAR_FROM_ZERO * steps))
    if lost >= LEAST_PRUNED or find_pruned(ours, theirs, seen) is not None:
        return None
    nearest = grid.even and bool(np.mean(difference <= _NEAREST * steps) > 0.99)
    return Grid(
        bits=grid.bits, shared=grid.shared, group=grid.group, even=grid.even, nearest=nearest,
        steps=grid.steps,
    )  # fmt: skip


def find_grid_fault(base: Array, candidate: Array) -> StructureFault | None:
    """Say by how many whole steps of its grid the candidate is shifted, as wrong zero points do it,
    that its groups have the scales of their neighbours, or that it was pruned before it was
    rounded; None where none is so: a rounding alone is off to both sides.

    Args:
        base, candidate: of one shape: a matrix, or some of its rows.
    """
    ours, theirs = _as_rows(base), _as_rows(candidate)
    if ours is None or theirs is None or find_grid(theirs[:_FEW_ROWS]) is None:
        return None
    grid = find_grid(theirs)
    if grid is None:
        return None
    steps, seen = _measure_steps(grid, ours, theirs)
    shifts = _measure_shifts(grid, ours, theirs, steps)
    if not shifts.any():
        pruned = find_pruned(ours, theirs, seen)
        if pruned is not None:
            return replace(pruned, detail=f"{pruned.detail}, otherwise {grid}")
        return _find_rolled_scales(grid, ours, theirs)
    error_left = float(np.linalg.norm(theirs - ours - shifts * steps)) / max(
        float(np.linalg.norm(ours)), 1e-30
    )
    detail = f"{shift_text(shifts[shifts != 0])}, otherwise {grid}"
    return StructureFault(fault="zero points off", detail=detail, left=error_left)


def _find_rolled_scales(grid: Grid, base: Array, candidate: Array) -> StructureFault | None:
    """Say that each group is multiplied as with the scale of the one before or behind it; None
    where it is not.

    Scales go with the widest number of a group, or with its range: a group that has its
    neighbour's is the base's times their ratio.
    """
    if grid.shared not in ("row", "column", "group"):
        return None
    turn = grid.shared == "column"
    ours, theirs = (
        (matrix.T if turn else matrix).astype(np.float64) for matrix in (base, candidate)
    )
    shape = (len(ours), -1, grid.group or ours.shape[1])
    ours, theirs = ours.reshape(shape), theirs.reshape(shape)
    products, squares = (np.sum(ours * factor, axis=2) for factor in (theirs, ours))
    sizes = [np.abs(ours).max(axis=2), np.ptp(ours, axis=2)]
    if not (np.all(products > 0) and all(np.all(size > 0) for size in sizes)):
        return None
    own = np.log(products / squares)
    what = {"group": f"group of {grid.group}"}.get(grid.shared, grid.shared)
    for size in sizes:
        move = find_moved_scales(own, np.log(size))
        if move is not None:
            axis, step = move
            ratio = np.roll(size, step, axis) / size
            error_left = np.linalg.norm(theirs / ratio[..., None] - ours) / np.linalg.norm(ours)
            words = rolled_text(what, axis, step, along=grid.shared == "group")
            detail = f"{words}, otherwise {grid}"
            return StructureFault(fault="scales rolled", detail=detail, left=float(error_left))
    return None


def _measure_shifts(grid: Grid, base: Array, candidate: Array, steps: Array) -> Array:
    """Return by how many whole steps the group of each element is shifted, 0 of those that are not;
    all 0 where most are not.

    The middle error of a group is near 0 of any rounding. At its ends numbers may be cut off, by
    any amount: these say nothing.
    """
    if grid.shared == "mantissa":
        return np.zeros_like(base)
    with np.errstate(all="ignore"):
        errors = np.where(steps > 0, (candidate - base) / steps, 0.0)
    turn = grid.shared == "column"
    rows, columns = errors.T.shape if turn else errors.shape
    width = errors.size if grid.shared == "tensor" else grid.group or columns
    groups, values = (
        (matrix.T if turn else matrix).reshape(-1, width) for matrix in (errors, candidate)
    )
    middle = np.median(groups, axis=1, keepdims=True)
    whole = np.rint(middle)
    ends = (values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True))
    inside = (values > ends[0]) & (values < ends[1])
    size, remaining = (
        np.sum(inside * matrix**2, axis=1, keepdims=True) for matrix in (groups, groups - whole)
    )
    moved = (np.abs(middle - whole) < _WHOLE_STEP) & (remaining <= _LEFT * size)
    moved &= (whole != 0) & (size > 0)
    if 2 * np.count_nonzero(moved) <= len(groups):
        return np.zeros_like(base)
    shifts = np.repeat(np.where(moved, whole, 0), width).reshape(rows, columns)
    return shifts.T if turn else shifts


def measure_steps(grid: Grid, base: Array, candidate: Array) -> Array:
    """Return how far apart the levels are at each element of whole rows of a tensor.

    A group of too few numbers has the step that the base's would have.
    """
    return _measure_steps(grid, base, candidate)[0]


def _measure_steps(grid: Grid, base: Array, candidate: Array) -> tuple[Array, Array]:
    """Return the steps, and the same but infinite in groups of too few numbers."""
    if grid.shared == "mantissa":
        sizes: Array = np.abs(candidate) * np.float32(grid.steps[0])
        return sizes, sizes
    if grid.shared in ("tensor", "column"):
        whole = np.broadcast_to(grid.steps.astype(np.float32), base.shape)
        return whole, whole
    width = grid.group or base.shape[1]
    steps, levels, _ = fit_levels(candidate.reshape(-1, width))
    spread = 1.1 * np.ptp(base.reshape(-1, width), axis=1) / max(2**grid.bits - 1, 1)
    filled, seen = (
        np.repeat(np.where(levels > 0, steps, fallback).astype(np.float32), width).reshape(
            base.shape
        )
        for fallback in (spread, np.inf)
    )
    return filled, seen


def fit_levels(groups: Array) -> tuple[Array, Array, Array]:
    """Return the step of each group, how many levels it spans, and whether they are even.

    Levels that are not even have the widest step. Their number is 0 where too few different numbers
    are there for anything to be said, and -1 where the group lies on no grid of 256 levels.

    Args:
        groups: (groups, numbers of each).
    """
    wide = groups.astype(np.float64)
    ordered = np.sort(wide, axis=1)
    spread = ordered[:, -1] - ordered[:, 0]
    size = np.maximum(np.abs(ordered[:, 0]), np.abs(ordered[:, -1]))
    same = np.minimum(1e-6 * size, 1e-3 * spread / groups.shape[1])  # what float32 loses
    gaps = np.diff(ordered, axis=1)
    gaps[gaps < same[:, None]] = 0.0
    distinct = np.count_nonzero(gaps, axis=1) + 1
    # zeros may be pruned elements
    filled = np.count_nonzero(wide, axis=1)
    distinct_nonzero = distinct - (filled < groups.shape[1])
    repeated = (
        (distinct_nonzero >= 2) & (2 * distinct_nonzero <= filled) & (distinct <= _MOST_LEVELS)
    )
    levels = np.where(repeated | (distinct >= _LEAST_DISTINCT), -1, 0)
    steps, even = np.zeros(len(groups)), np.zeros(len(groups), dtype=np.bool_)
    asked = np.flatnonzero((levels < 0) & (distinct <= _MOST_LEVELS))
    steps[asked], spanned = _fit_steps(gaps[asked], spread[asked])
    even[asked] = spanned > 0
    levels[asked] = np.where(spanned > 0, spanned, levels[asked])
    uneven = repeated & ~even
    levels[uneven], steps[uneven] = distinct[uneven], gaps[uneven].max(axis=1, initial=0.0)
    return steps, levels, even


def _fit_steps(gaps: Array, spread: Array) -> tuple[Array, Array]:
    """Return the step and the levels of groups whose gaps are whole steps, 0 for the others."""
    smallest = np.where(gaps > 0, gaps, np.inf).min(axis=1, initial=np.inf)
    steps, levels = np.zeros(len(gaps)), np.zeros(len(gaps), dtype=np.intp)
    for part in (1, 2, 3, 4):  # the smallest gap may be of some steps
        with np.errstate(all="ignore"):
            step = smallest / part
            wide = spread / step + 1 <= _MOST_LEVELS + 0.5
            ratio = gaps / step[:, None]
            whole = np.rint(ratio)
            good = wide & (np.abs(ratio - whole) < _OFF * np.maximum(1, whole / 16)).all(axis=1)
            good &= steps == 0
            fine = (gaps * whole).sum(axis=1) / (whole * whole).sum(axis=1)
        steps[good] = fine[good]
        levels[good] = np.rint(spread[good] / fine[good]).astype(int) + 1
    return steps, np.minimum(levels, _MOST_LEVELS)


def _as_rows(values: Array) -> Array | None:
    if values.ndim < 2 or len(values) < 2 or not values.size or not np.all(np.isfinite(values)):
        return None
    return np.ascontiguousarray(values.reshape(len(values), -1)[:_MOST_ROWS], dtype=np.float32)


def _share(rows: Array) -> Iterator[tuple[Sharing, int, Array]]:
    """Yield the groups of numbers that may share a scale, the widest first."""
    columns = rows.shape[1]
    yield "tensor", 0, rows.reshape(1, -1)
    if columns >= _LEAST_WIDTH:
        yield "row", 0, rows
    if len(rows) >= _FEW_ROWS:
        yield "column", 0, np.ascontiguousarray(rows.T)
    for size in _GROUPS:
        if columns % size == 0 and columns > size:
            yield "group", size, rows.reshape(-1, size)


def _fit_grid(shared: Sharing, group: int, numbers: Array) -> Grid | None:
    steps, levels, even = fit_levels(numbers)
    fitting = levels > 0
    if not fitting.any() or fitting.sum() < _MOST_GROUPS * np.count_nonzero(levels):
        return None
    # of nearly all: what is not quite on its levels may seem to lie on far finer ones
    most = int(np.quantile(levels[fitting], 0.99, method="higher"))
    median = float(np.median(steps[fitting]))
    return Grid(
        bits=next(bits for bits in range(1, 9) if 2**bits + (1 < bits < 8) >= most),
        shared=shared,
        group=group,
        even=bool(even[fitting].mean() >= _MOST_GROUPS),
        steps=np.where(fitting, steps, median) if shared == "column" else np.array([median]),
    )


def _count_mantissa(values: Array) -> int:
    """Count the bits of mantissa that the values need."""
    raw = values.astype(np.float32).view(np.uint32) & np.uint32(0x7FFFFF)
    used = int(np.bitwise_or.reduce(raw, axis=None))
    return 23 if used & 1 else 23 - ((used & -used).bit_length() - 1) if used else 0
