"""How well the blocks of a packed weight fit the weight that they were made from.

A rounding to nearest leaves every element within half a step. Quantisers that move errors from
column to column (GPTQ), or learn which way to round (AutoRound), do not: they leave more, in all
blocks alike. What is damaged stands out of the others: by its size, by a shift of all its elements
(a zero point), by a factor (a scale), or by one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import SEARCHED
from evalguard.core.moved_codes import (
    CutCodes,
    find_moved_bits,
    find_moved_codes,
    find_moved_scales,
    rolled_text,
)
from evalguard.core.row_counts import rows_text
from evalguard.core.tensor_structure import Fault, StructureFault, shift_text
from evalguard.tensor_files.gguf_blocks import cut_codes
from evalguard.tensor_files.gguf_bounds import WITH_MINIMA, block_cells
from evalguard.tensor_files.packed.row_codec import RowBytes, RowGrid
from evalguard.tensor_files.stored_tensor import Bytes, StoredTensor
from evalguard.tensors.damaged_rows import RowFault, factor_text
from evalguard.tensors.streamed_sums import StoredPair, lay_out_base

Array = NDArray[Any]
WIDEST = 128  # columns of a block: of a wider group parts are looked at
# All of these are in half steps, of which a rounding to nearest leaves 0.58 (root mean square).
_RMS = 2.0
_SHIFT, _MOST_SHIFT = 1.0, 1.6  # a zero point that is one off shifts by 2
_FACTOR, _MOST_FACTOR = 0.12, 0.5
_USUAL = 8.0  # times what is usual of shifts and factors
_CERTAIN, _BY_CHANCE = 7.0, 60.0  # standard errors, and more of blocks of few elements
_WORST = 2.5  # times an element's bound
# Errors that are moved grow with the largest step of a row, and with its columns: times the others
# of the same columns, measured by it.
_MOVED_RMS, _MOVED_WORST, _MOVED_NARROW = 4.0, 3.0, 8.0  # the last of blocks of few elements
_NEAREST_RMS, _NEAREST_WORST = 1.3, 1.6  # where none were moved
_FEW_LEVELS = 4  # of which so much is lost that a factor of a block says nothing
_FEW_BLOCKS, _FEW = 0.02, 16  # beyond their bound: of more, errors were moved
_MOVED = 2.0  # as much as quantisers move in the middle block; what is off by more is another
_NEGATED = 0.1  # of a factor
_LITTLE, _AS_OTHERS = 0.1, 4.0  # of the squares that a factor explains, and times what is usual
_WHOLE = 0.8  # of a row's blocks
_MOST_BLOCKS = 0.25  # that stand out; of more, the others are no rule


@dataclass(slots=True, kw_only=True)
class BlockFit:
    """Figures of every block of a packed weight, filled by rows.

    Attributes:
        rows, blocks, width: of the weight, of a row, of a block.
        order: (columns,) that puts the columns of a group beside each other; None: they are.
        levels: that an element may have.
        shifts: whether groups have a zero point of their own, which may be wrong.
    """

    rows: int
    blocks: int
    width: int
    order: Array | None = None
    levels: int = 256
    shifts: bool = False
    unit: Array = field(init=False)
    rms: Array = field(init=False)
    shift: Array = field(init=False)
    factor: Array = field(init=False)
    weight: Array = field(init=False)
    worst: Array = field(init=False)
    farthest: Array = field(init=False)
    zeroed: Array = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.rows, self.blocks)
        for name in ("unit", "rms", "shift", "factor", "weight", "worst", "farthest"):
            setattr(self, name, np.zeros(shape, dtype=np.float32))
        self.zeroed = np.zeros(shape, dtype=np.bool_)

    def add(self, first: int, base: Array, candidate: Array, reach: Array, allowed: Array) -> None:
        """Take in whole rows.

        Args:
            reach: half a step of each element.
            allowed: the greatest error of a rounding to nearest, infinite where it was cut off.
        """
        laid = [self._lay(array) for array in (base, candidate, reach, allowed)]
        base, candidate, reach, allowed = laid
        here = slice(first, first + len(base))
        with np.errstate(all="ignore"):
            usable = allowed < SEARCHED
            ours = np.where(usable, base, 0)
            off = np.where(usable, candidate - base, 0)
            count = np.maximum(usable.sum(axis=2), 1)
            unit = np.sqrt(np.mean(reach * reach, axis=2))
            unit = np.where(unit > 0, unit, np.finfo(np.float32).tiny)
            squares = np.einsum("ijk,ijk->ij", ours, ours)
            self.rms[here] = np.sqrt(np.einsum("ijk,ijk->ij", off, off) / count) / unit
            self.shift[here] = off.sum(axis=2) / count / unit
            dot = np.einsum("ijk,ijk->ij", ours, off)
            self.factor[here] = np.where(squares > 0, dot / squares, 0)
            self.weight[here] = np.sqrt(squares) / unit
            self.unit[here] = unit
            self.farthest[here] = np.abs(off).max(axis=2)
            self.worst[here] = np.nan_to_num(np.abs(off) / allowed, nan=0, posinf=1e9).max(axis=2)
            self.zeroed[here] = (candidate == 0).all(axis=2) & (base != 0).any(axis=2)

    def _lay(self, values: Array) -> Array:
        ordered = values if self.order is None else values[:, self.order]
        return ordered.reshape(len(values), self.blocks, self.width)

    @property
    def moves_errors(self) -> bool:
        """Whether so many blocks are beyond a rounding to nearest that it was none."""
        beyond = int((_finite(self.worst) > 1).sum())
        return beyond > max(_FEW_BLOCKS * self.worst.size, _FEW)

    def flag(self) -> dict[Fault, Array]:
        """Return which blocks stand out, each by what is wrong with it."""
        rms, shift, factor = (_finite(figures) for figures in (self.rms, self.shift, self.factor))
        worst, explained = _finite(self.worst), factor * _finite(self.weight)
        shifted = self._stands_out(shift, shift * np.sqrt(self.width), (_SHIFT, _MOST_SHIFT))
        scaled = self._stands_out(factor, explained, (_FACTOR, _MOST_FACTOR))
        beyond = worst > 1
        if self.moves_errors:
            off = rms * self.unit
            margin = 1 + _MOVED_NARROW / self.width
            large = (rms > _RMS) & (self._beside(off) > _MOVED_RMS * margin)
            large |= (worst > _WORST) & (self._beside(self.farthest) > _MOVED_WORST * margin)
            scaled &= self.levels > _FEW_LEVELS
        else:
            large = (rms > _NEAREST_RMS) | (worst > _NEAREST_WORST)
        zeroed = beyond & self.zeroed & (rms > 1)
        remaining = beyond & ~zeroed
        off_zero = remaining & shifted & self.shifts & (np.abs(shift) > 0.7 * rms)
        explained = np.clip(explained, -1e15, 1e15)
        signal = (
            (1 + np.clip(factor, -1e9, 1e9)) * _finite(self.weight)
        ) ** 2  # what is the base's of the candidate
        with np.errstate(over="ignore", invalid="ignore"):
            rest = np.maximum(rms**2 * self.width - explained**2, 0)
        wrong = remaining & ~off_zero & scaled & (signal > 4 * rest) & (explained**2 > rest)
        # a factor leaves little, or what the format leaves of other blocks
        usual = max(float(np.median(rms**2)), 1.0) * self.width
        wrong &= (rest <= _LITTLE * explained**2) | (rest <= _AS_OTHERS * usual)
        return {
            "zero points off": off_zero,
            "blocks zeroed": zeroed,
            "blocks negated": wrong & (np.abs(factor + 2) < _NEGATED),
            "blocks scaled": wrong & (np.abs(factor + 2) >= _NEGATED),
            "blocks damaged": remaining
            & ~off_zero
            & ~wrong
            & (large | scaled | (shifted & self.shifts)),
        }

    def _stands_out(self, values: Array, explained: Array, limits: tuple[float, float]) -> Array:
        """Say which blocks have a shift or a factor that is neither usual nor chance.

        Args:
            explained: root of the squares that it explains of each block.
            limits: what it has to be at least, and is asked for at most.
        """
        usual = float(np.median(np.abs(values)))
        with np.errstate(over="ignore", invalid="ignore"):
            rest = _finite(self.rms).astype(np.float64) ** 2 - explained**2 / self.width
            error = np.sqrt(np.maximum(rest, 0.01))
            chance = _BY_CHANCE / self.width if self.moves_errors else 0.0
            certain = np.abs(explained) > (_CERTAIN + chance) * error
        outside: Array = np.abs(values) > min(max(limits[0], _USUAL * usual), limits[1])
        return outside & certain

    def _beside(self, size: Array) -> Array:
        """Return errors beside those of the same columns, in the largest steps of their rows."""
        with np.errstate(all="ignore"):
            own = _finite(size / self.unit.max(axis=1, keepdims=True))
            usual = np.median(own, axis=0, keepdims=True)
            ratio: Array = own / np.maximum(usual, 1e-9)
        return ratio

    @property
    def whole_rows(self) -> Array:
        """Rows of which nearly all blocks stand out."""
        flagged = np.logical_or.reduce([*self.flag().values()])
        return np.flatnonzero(flagged.mean(axis=1) > _WHOLE)

    def find_faults(self, *, named: tuple[RowFault, ...] = ()) -> tuple[RowFault, ...] | None:
        """Return the damaged blocks by what was done to them, the most first; None where so many
        stand out, or all are so far off, that they are no damage of blocks.

        Args:
            named: what was done to some whole rows, whose blocks are no others.
        """
        flags = self.flag()
        rows = [row for fault in named for row in fault.rows]
        for flagged in flags.values():
            flagged[rows] = False
        # a shift by whole steps is seen in a block itself, and not beside the others
        shifted = flags["zero points off"]
        unshifted = sum(int(blocks.sum()) for blocks in flags.values()) - int(shifted.sum())
        if unshifted > _MOST_BLOCKS * self.rms.size:
            return None
        squares = _finite(self.rms) ** 2 - np.where(shifted, _finite(self.shift) ** 2, 0.0)
        if self.moves_errors and float(np.median(squares)) > _MOVED**2:
            return None
        faults = [
            *named,
            *(
                self._describe(fault, np.argwhere(flagged))
                for fault, flagged in flags.items()
                if flagged.any()
            ),
        ]
        return tuple(sorted(faults, key=lambda fault: -len(fault.rows)))

    def _describe(self, fault: Fault, places: Array) -> RowFault:
        rows = np.unique(places[:, 0])
        row, block = (int(number) for number in places[0])
        first, last = block * self.width, (block + 1) * self.width - 1
        where = f"columns {first} to {last}"
        if self.order is not None:
            where = f"{self.width} columns, first {int(self.order[first])}"
        parts = [f"{rows_text(rows.tolist())}, {where}"]
        if len(places) == len(rows) * self.blocks and self.blocks > 1:
            parts = [rows_text(rows.tolist())]
        elif len(places) > 1:
            parts = [
                f"{len(places):,} blocks of {rows_text(rows.tolist())}; first row {row}, {where}"
            ]
        index = tuple(places.T)
        if fault == "blocks scaled":
            parts.append(factor_text(1 + self.factor[index]))
        if fault == "zero points off":
            parts.append(shift_text(np.rint(self.shift[index] / 2)))
        blocks = tuple(
            (int(row_index), int(at) * self.width, (int(at) + 1) * self.width - 1)
            for row_index, at in places[:8].tolist()
        )
        return RowFault(
            fault=fault,
            rows=tuple(rows.tolist()),
            detail=", ".join(parts),
            blocks=() if self.order is not None else blocks,
        )


def _finite(values: Array) -> Array:
    finite = np.nan_to_num(values.astype(np.float64), nan=1e9, posinf=1e9, neginf=-1e9)
    return np.clip(finite, -1e9, 1e9)


def choose_width(group: int) -> int:
    """Return how many columns of a group are looked at together: a part of it, at most 128."""
    if group <= WIDEST:
        return group
    return next((width for width in range(WIDEST, 15, -1) if group % width == 0), group)


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
        fit.add(first, *(array.reshape(-1, width) for array in (base, values, reach, allowed)))
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
        decoded = block_cells(tensor.dtype, raw, codec.size)
        assert decoded is not None
        return decoded.high - decoded.low

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
        residual = np.nansum(rest / slopes**2)
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
            left=math.sqrt(float(residual) / size),
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


_VECTORS = 16  # neighbours that have one scale, in every type that is vectors of a codebook
_SEEN_FIRST = 64  # rows by which most codes are seen to be in place, or others


def find_code_fault(pair: StoredPair, *, heads: bool, rounding: float) -> StructureFault | None:
    """Say that the codes of a packed candidate are in another order, or some bits of them, and
    their scales are not; None where that is not so.

    Args:
        heads, rounding: as of :func:`find_structure`.
    """
    tensor = pair.candidate
    scales = _find_scales(tensor)
    if scales is None and (isinstance(tensor.source, RowBytes) or tensor.codec.block % _VECTORS):
        return None
    whole = pair.base.load() if pair.lies_alike else lay_out_base(pair, tensor.shape)
    width = _VECTORS if scales is None else scales.width
    columns = tensor.shape[-1] if scales is None else scales.columns
    if columns % width:
        return None
    order = slice(None) if scales is None or scales.order is None else scales.order
    base, candidate = (array.reshape(-1, columns)[:, order] for array in (whole, tensor.load()))
    signed = not isinstance(tensor.source, RowBytes) and not (scales and scales.minima)
    fault = find_moved_codes(base, candidate, width, signed=signed, heads=heads, rounding=rounding)
    return fault or _find_bit_fault(tensor, base, heads=heads)


def _find_bit_fault(tensor: StoredTensor, base: Array, *, heads: bool) -> StructureFault | None:
    """Say that some bits of all codes are in another order, of types that cut codes into fields.

    Args:
        base: its numbers, in the candidate's rows.
    """

    def cut(rows: int) -> CutCodes | None:
        raw = tensor.read_bytes(0, rows * base.shape[1])
        return cut_codes(tensor.dtype, tensor.codec.size, raw)

    few = base[:_SEEN_FIRST]
    seen = cut(len(few))
    if seen is None or not seen.list_moved(few):
        return None
    codes = cut(len(base))
    return None if codes is None else find_moved_bits(codes, base, heads=heads)


def _sum_groups(scales: _Scales, *sides: Array) -> tuple[Array, ...]:
    """Return of each group by how much the candidate grows with the base and by how much it is
    shifted, and the squares of the base, of the difference and of what a line leaves of it."""
    laid = (side.reshape(-1, scales.columns).astype(np.float64) for side in sides)
    ordered = (array if scales.order is None else array[:, scales.order] for array in laid)
    base, candidate = (array.reshape(len(array), -1, scales.width) for array in ordered)
    off = candidate - base
    ours, theirs = (array - array.mean(axis=2, keepdims=True) for array in (base, candidate))
    slopes = np.sum(ours * theirs, axis=2) / np.sum(ours * ours, axis=2)
    rest = theirs - slopes[..., None] * ours
    squares = (np.sum(array * array, axis=2) for array in (base, off, rest))
    return slopes, off.mean(axis=2), *squares
