"""A packed weight against the plain one that it was made from, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.block_fit import BlockFit, choose_width
from evalguard.core.tensors.grid import find_moved_scales, rolled_text
from evalguard.core.tensors.structure import StructureFault
from evalguard.run.tensors.streaming import StoredPair, lay_out_base
from evalguard.store.tensor_files.gguf_bounds import WITH_MINIMA, block_cells
from evalguard.store.tensor_files.packed.row_codec import RowBytes, RowGrid
from evalguard.store.tensor_files.stored import Bytes, StoredTensor

Array = NDArray[Any]

_PIECE = 1 << 18  # elements that are read at a time
_LEFT = 0.25  # of the squared error: a rounding leaves hardly any of it to the middle of a group
_LEAST_GROUP = 8  # columns: a scale for each few of them, and these say nothing together


def fit_blocks(
    pair: StoredPair, *, rows: Array | None = None, columns: Array | None = None
) -> BlockFit | None:
    """Return the figures of all blocks of a pair whose candidate is packed; None of others.

    Args:
        rows, columns: factors that the base is multiplied with before; None: none.
    """
    source = pair.candidate.source
    plain = not pair.base.codec.quantised and pair.lies_alike
    if not isinstance(source, RowBytes) or not plain or pair.base.shape != pair.candidate.shape:
        return None
    grid, width = source.grid, pair.candidate.codec.block
    if pair.candidate.elements == 0:
        return None
    count = pair.candidate.elements // width
    fit = _start(grid, count)
    height = max(_PIECE // width, 1)
    for first in range(0, count, height):
        stop = min(first + height, count)
        raw = pair.candidate.read_bytes(first * width, stop * width)
        base = pair.base.read(first * width, stop * width).astype(np.float32)
        if columns is not None or rows is not None:
            laid = base.reshape(stop - first, width)
            if columns is not None:
                laid = laid * columns
            if rows is not None:
                laid = laid * rows[first:stop, None]
            base = np.ascontiguousarray(laid, dtype=np.float32).reshape(-1)
        values = pair.candidate.codec.decode(raw)
        assert pair.candidate.codec.bound is not None
        allowed = pair.candidate.codec.bound(raw, values, base).excuse(base, values)
        reach = grid.reach(raw)
        fit.add(first, *(one.reshape(-1, width) for one in (base, values, reach, allowed)))
    return fit


def _start(grid: RowGrid, rows: int) -> BlockFit:
    group, order = _find_groups(grid)
    if group < _LEAST_GROUP:
        group = grid.columns
    width = choose_width(group)
    return BlockFit(
        rows=rows,
        blocks=grid.columns // width,
        width=width,
        order=order,
        levels=len(np.unique(grid.levels.values)),
        shifts=grid.has_zeros,
    )


def _find_groups(grid: RowGrid) -> tuple[int, Array | None]:
    """Return how many columns share a scale, all of them where that differs, and the order that
    puts them beside each other; None: they are."""
    if grid.group_of is None:
        return grid.columns // max(grid.groups, 1), None
    order = np.argsort(grid.group_of, kind="stable")
    counts = np.bincount(grid.group_of)
    group = int(counts[0]) if (counts == counts[0]).all() else grid.columns
    return group, None if (np.diff(order) == 1).all() else order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scales:
    """How the scales of a packed weight are read, whose rows have ``columns``.

    Attributes:
        width: columns that share a scale, once they lie in ``order``.
        read: (groups) of bytes. block: groups of which all are multiplied with one scale more.
        minima: whether a least value is stored beside each, as some types of GGUF have it.
    """

    columns: int
    width: int
    order: Array | None = None
    read: Callable[[Bytes], Array]
    block: int = 1
    minima: bool = False


def _find_scales(tensor: StoredTensor) -> _Scales | None:
    """Say how the scales of a weight are read; None where groups of columns have none."""
    source, codec = tensor.source, tensor.codec
    if isinstance(source, RowBytes):
        grid = source.grid
        width, order = _find_groups(grid)
        if width < _LEAST_GROUP or width * grid.groups != grid.columns:
            return None
        return _Scales(
            columns=grid.columns, width=width, order=order, read=lambda raw: grid.split(raw).scales
        )
    cells = block_cells(tensor.dtype, np.zeros(codec.size, dtype=np.uint8), codec.size)
    columns = tensor.shape[-1] if tensor.shape else 1
    if cells is None or columns % codec.block:
        return None

    def read(raw: Bytes) -> Array:
        found = block_cells(tensor.dtype, raw, codec.size)
        assert found is not None
        return found.high - found.low

    return _Scales(
        columns=columns,
        width=cells.width,
        read=read,
        block=codec.block // cells.width,
        minima=tensor.dtype in WITH_MINIMA,
    )


def find_scale_fault(pair: StoredPair) -> StructureFault | None:
    """Say that the groups of a packed candidate have the scales of their neighbours, or minima of
    GGUF that are off; None where neither is so.

    A group is the base's times the ratio of the scale that it has and that which it should have,
    whatever its zero point is.
    """
    shape = pair.candidate.shape
    if pair.base.codec.quantised or not pair.candidate.elements:
        return None
    if pair.lies_alike and shape != pair.base.shape:
        return None
    scales = _find_scales(pair.candidate)
    if scales is None:
        return None
    whole = None if pair.lies_alike else lay_out_base(pair, shape)
    columns, parts = scales.columns, []
    count = pair.candidate.elements // columns
    height = max(_PIECE // columns, 1)
    with np.errstate(all="ignore"):
        for first in range(0, count, height):
            start, stop = first * columns, min(first + height, count) * columns
            raw = pair.candidate.read_bytes(start, stop)
            base = pair.base.read(start, stop) if whole is None else whole[start:stop]
            sums = _sum_groups(scales, base, pair.candidate.codec.decode(raw))
            parts.append((scales.read(raw).reshape(len(sums[0]), -1), *sums))
        held, slopes, shifts, squares, off, rest = map(np.concatenate, zip(*parts, strict=True))
        factors, sizes = np.log(np.abs(slopes)), np.log(np.abs(held))
        left = np.nansum(rest / slopes**2)
        moved = scales.width * shifts**2
    what = "row" if scales.width == shape[-1] else f"group of {scales.width}"
    size = float(np.nansum(squares)) or 1.0
    # the scale that a group should have is that which its neighbour has: moved the other way
    changes = np.flatnonzero(np.any(np.diff(sizes, axis=0), axis=1))
    shared = int(changes[0]) + 1 if changes.size else 1
    move = find_moved_scales(factors, -sizes, (1, scales.block), shared)
    if move is None and scales.block > 1:
        laid = (count, -1, scales.block)
        factors, sizes = factors.reshape(laid).mean(axis=2), sizes.reshape(laid).max(axis=2)
        move, what = find_moved_scales(factors, -sizes), f"block of {scales.width * scales.block}"
    if move is not None:
        axis, step = move
        return StructureFault(
            fault="scales rolled",
            detail=rolled_text(what, axis, -step, along=sizes.shape[1] > 1),
            left=math.sqrt(float(left) / size),
        )
    unexplained = max(float(np.nansum(off) - np.nansum(moved)), 0.0)
    wrong = np.count_nonzero(moved > _LEFT * off)
    if not scales.minima or unexplained > _LEFT * float(np.nansum(off)) or 2 * wrong < off.size:
        return None
    return StructureFault(
        fault="zero points off",
        detail=f"minima of {wrong:,} of {moved.size:,} groups of {scales.width}",
        left=math.sqrt(unexplained / size),
    )


def _sum_groups(scales: _Scales, *sides: Array) -> tuple[Array, ...]:
    """Return of each group by how much the candidate grows with the base and by how much it is
    shifted, and the squares of the base, of the difference and of what a line leaves of it."""
    laid = (one.reshape(-1, scales.columns).astype(np.float64) for one in sides)
    ordered = (one if scales.order is None else one[:, scales.order] for one in laid)
    base, candidate = (one.reshape(len(one), -1, scales.width) for one in ordered)
    off = candidate - base
    ours, theirs = (one - one.mean(axis=2, keepdims=True) for one in (base, candidate))
    slopes = np.sum(ours * theirs, axis=2) / np.sum(ours * ours, axis=2)
    rest = theirs - slopes[..., None] * ours
    squares = (np.sum(one * one, axis=2) for one in (base, off, rest))
    return slopes, off.mean(axis=2), *squares
