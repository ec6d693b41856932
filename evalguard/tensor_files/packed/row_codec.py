"""Packed weights as rows: the codes of a row, and beside them the scales of its groups.

Whatever a checkpoint packs, and in whichever order, is read as such rows: they are then blocks of
bytes as those of GGUF are, decoded and judged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import CAST, Bound
from evalguard.errors import EvaluationError
from evalguard.tensor_files.packed.levels import Column, Levels, offset_levels, signed_levels
from evalguard.tensor_files.stored_tensor import Bytes, Held, StoredTensor, TensorCodec

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Some rows of a packed weight.

    Attributes:
        codes: (rows, columns) uint8, or of half as many bytes, as :class:`RowGrid` says.
        scales: (rows, groups) float32.
        zeros: (rows, groups) float32, taken off the level before it is scaled; None: 0.
        slack: (rows, groups) float32, what the scale itself may be off by, for it was rounded after
            the codes were chosen; None: nothing.
    """

    codes: Array
    scales: Array
    zeros: Array | None = None
    slack: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGrid:
    """How the rows of one weight are laid out.

    Attributes:
        columns: of a row, and ``groups`` of it that have a scale of their own.
        nibbles: whether two codes of 4 bits lie in a byte, the earlier in the lower bits.
        bits_told: whether somebody says how many bits a code has; else its codes show it.
        lost: part of a number that is lost before and after it is rounded to a level.
        group_of: (columns,) the group of each column where they are not one after the other
            (act-order); None: they are.
        factors: (columns,) what each column is multiplied with once it is scaled; None: nothing.
    """

    levels: Levels
    columns: int
    groups: int = 1
    nibbles: bool = False
    has_zeros: bool = False
    has_slack: bool = False
    bits_told: bool = True
    lost: float = CAST
    group_of: Array | None = None
    factors: Array | None = None

    @property
    def code_bytes(self) -> int:
        """Bytes of a row's codes."""
        return self.columns // 2 if self.nibbles else self.columns

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self.code_bytes + 4 * self.groups * (1 + self.has_zeros + self.has_slack)

    @property
    def width(self) -> int:
        """Columns that share a scale; 0 where groups are not equal and in order."""
        if self.group_of is not None or self.columns % self.groups:
            return 0
        return self.columns // self.groups

    def codec(self) -> TensorCodec:
        """Return the codec of such rows."""
        return TensorCodec(
            dtype=self.levels.name,
            block=self.columns,
            size=self.size,
            decode=self._decode,
            quantised=True,
            bound=self._bound,
        )

    def pack(self, rows: PackedRows) -> Bytes:
        """Return rows as bytes."""
        parts = [rows.codes]
        planes = (rows.scales, rows.zeros if self.has_zeros else None, rows.slack)
        for plane in planes:
            if plane is not None:
                laid = np.broadcast_to(plane, (len(rows.codes), self.groups))
                parts.append(np.ascontiguousarray(laid, dtype=np.float32).view(np.uint8))
        return np.concatenate(parts, axis=1).reshape(-1)

    def split(self, raw: Bytes) -> PackedRows:
        """Return the rows of bytes that :meth:`pack` made."""
        table = raw.reshape(-1, self.size)
        planes = table[:, self.code_bytes :]
        if self.code_bytes % 4:  # else they lie as numbers of four bytes do
            planes = np.ascontiguousarray(planes)
        planes = planes.view(np.float32)
        at, sections = self.groups, [planes[:, : self.groups]]
        for has in (self.has_zeros, self.has_slack):
            sections.append(planes[:, at : at + self.groups] if has else planes[:, :0])
            at += self.groups * has
        return PackedRows(
            codes=table[:, : self.code_bytes],
            scales=sections[0],
            zeros=sections[1] if self.has_zeros else None,
            slack=sections[2] if self.has_slack else None,
        )

    def spread(self, plane: Array) -> Array:
        """Lay one number a group over the columns; of equal groups as (rows, groups, 1)."""
        if self.width:
            return plane[:, :, None]
        index = self.group_of
        if index is None:
            index = np.arange(self.columns) // -(-self.columns // self.groups)
        laid: Array = plane[:, index]
        return laid

    def grouped(self, values: Array) -> Array:
        """Return (rows, columns) numbers so that :meth:`spread` fits them."""
        return values.reshape(len(values), self.groups, self.width) if self.width else values

    def look_up(self, column: Column, rows: PackedRows) -> Array:
        """Return what the levels' table says of each code, as :meth:`grouped` lays it."""
        return self.grouped(self.levels.look_up(column, rows.codes, nibbles=self.nibbles))

    def _decode(self, raw: Bytes) -> Array:
        rows = self.split(raw)
        zeros = rows.zeros
        if zeros is not None and (zeros == zeros[:1, :1]).all():  # mostly the middle of all codes
            levels = self.levels.less(float(zeros[0, 0]))
            values = self.grouped(levels.look_up("values", rows.codes, nibbles=self.nibbles))
        else:
            values = self.look_up("values", rows)
            if zeros is not None:
                values -= self.spread(zeros)
        with np.errstate(over="ignore"):  # of a damaged scale
            values *= self.spread(rows.scales)
            values = values.reshape(len(rows.codes), self.columns)
            if self.factors is not None:
                values *= self.factors
        return values.reshape(-1)

    def reach(self, raw: Bytes) -> Array:
        """Return half the step at each element."""
        rows = self.split(raw)
        reaches = self.look_up("reach", rows)
        reaches *= self.spread(np.abs(rows.scales))
        reaches = reaches.reshape(len(rows.codes), self.columns)
        if self.factors is not None:
            reaches *= np.abs(self.factors)
        return reaches.reshape(-1)

    def _bound(self, raw: Bytes, values: Array, exact: Array) -> Bound:
        """Return the greatest error of a rounding to nearest in each element.

        Where all are within it, none is said to be at an end: that is asked of those beyond.
        """
        rows = self.split(raw)
        allowed = self.look_up("allowed", rows)
        allowed *= self.spread(np.abs(rows.scales))
        if rows.slack is not None:
            allowed += self.spread(rows.slack) * self.look_up("farthest", rows)
        allowed = allowed.reshape(len(rows.codes), self.columns)
        if self.factors is not None:
            allowed *= np.abs(self.factors)
        allowed = allowed.reshape(-1)
        size = np.abs(values)
        size *= np.float32(self.lost)
        allowed += size
        if _is_within(values, exact, allowed):
            return Bound(allowed, np.zeros(allowed.size, dtype=np.int8))
        edge = self.look_up("ends", rows)
        if (rows.scales < 0).any():
            edge = edge * np.sign(self.spread(rows.scales)).astype(np.int8)
        edge = edge.reshape(len(rows.codes), self.columns)
        if self.factors is not None:
            edge = edge * np.sign(self.factors).astype(np.int8)
        return Bound(allowed, edge.reshape(-1))


def _is_within(values: Array, exact: Array, allowed: Array) -> bool:
    """Whether no element is beyond its bound, nor so near to it that a cast might decide."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = values - exact
        np.abs(difference, out=difference)
        difference *= _NEAR
    return not (difference > allowed).any()


_NEAR = np.float32(1.001)


@dataclass(slots=True, kw_only=True)
class RowBytes:
    """Rows of a packed weight, read when they are asked for.

    Attributes:
        read_rows: gives the rows from one to another.
        at_once: how many rows are read together and kept, because they lie across one another in
            the file; 0: any can be read alone.
        held: what is read of all rows for the first of them.
    """

    name: str
    grid: RowGrid
    rows: int
    read_rows: Callable[[int, int], PackedRows]
    at_once: int = 0
    held: Held[Any] | None = None
    _kept: dict[int, Bytes] = field(default_factory=dict)

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes of whole rows."""
        size = self.grid.size
        first, last = start // size, stop // size
        if not self.at_once:
            return self._pack(first, last)
        parts = []
        for slab in range(first // self.at_once, -(-last // self.at_once)):
            begin = slab * self.at_once
            if slab not in self._kept:
                self._kept.clear()
                self._kept[slab] = self._pack(begin, min(begin + self.at_once, self.rows))
            inside = slice(max(first - begin, 0) * size, (last - begin) * size)
            parts.append(self._kept[slab][inside])
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint8)])

    def forget(self) -> None:
        """Give the memory back."""
        self._kept.clear()
        if self.held is not None:
            self.held.forget()

    def _pack(self, first: int, last: int) -> Bytes:
        rows = self.read_rows(first, last)
        for what, plane in (("scale", rows.scales), ("zero point", rows.zeros)):
            if plane is not None and not np.isfinite(plane).all():
                places = np.argwhere(~np.isfinite(plane))
                row, group = (int(index) for index in places[0])
                raise EvaluationError(
                    f"{self.name} has {len(places):,} {what}s that are NaN or infinite, the first "
                    f"of row {first + row}, group {group}"
                )
        return self.grid.pack(rows)


def uses_whole_range(tensor: StoredTensor) -> bool:
    """Whether a packed weight's codes reach far in most groups, or in one that has the only scale.

    A healthy scale is no larger than the greatest element needs. Of a larger one all elements are
    within half a step too, and many of them zero.
    """
    if not isinstance(tensor.source, RowBytes):
        return False
    grid = tensor.source.grid
    low, high = grid.levels.span
    # a zero point lies anywhere: one end is as far from it as half of all levels, or farther
    top = min(high, -low) if low < 0 else high // 2 if grid.has_zeros else high
    reached, scales = [], []
    step = max((1 << 18) // grid.columns, 1) * grid.columns
    for start in range(0, tensor.elements, step):
        rows = grid.split(tensor.read_bytes(start, min(start + step, tensor.elements)))
        levels = grid.look_up("values", rows)
        if rows.zeros is not None:
            levels = levels - grid.spread(rows.zeros)
        levels = np.abs(levels)
        reached.append(levels.reshape(-1, grid.width or grid.columns).max(axis=1))
        scales.append(np.unique(rows.scales))
    greatest = np.concatenate(reached)
    known = greatest[greatest > 0]
    if not known.size or float(np.median(known)) >= _REACHED * top:
        return True
    most = float(known.max())
    alone = len(np.unique(np.concatenate(scales))) == 1
    return alone and most >= 0.95 * top


_REACHED = 0.4  # of the highest level, in the middle group


def with_shown_levels(tensor: StoredTensor) -> StoredTensor | None:
    """Return a packed weight with the levels that its codes show, where they are integers of a byte
    each and nothing says of how many bits; None where all eight are used, or they end at no grid.

    Fewer bits are shown by codes that end exactly where a grid of so many ends: -8 or -7 to 7, or
    0 to 15 with half of that or more on one side of a zero point.
    """
    source = tensor.source
    if not isinstance(source, RowBytes) or source.grid.bits_told or not tensor.elements:
        return None
    grid = source.grid
    signed = grid.levels.signed
    low, high, reached = 0, 0, 0.0
    step = max((1 << 18) // grid.columns, 1) * grid.columns
    for start in range(0, tensor.elements, step):
        rows = grid.split(tensor.read_bytes(start, min(start + step, tensor.elements)))
        codes = rows.codes.view(np.int8 if signed else np.uint8)
        low, high = min(low, int(codes.min())), max(high, int(codes.max()))
        if rows.zeros is not None and not signed:
            off = grid.grouped(codes.astype(np.float32)) - grid.spread(rows.zeros)
            reached = max(reached, float(np.abs(off).max()))
    bits = max(high, -low - 1).bit_length() + signed
    top = (1 << (bits - signed)) - 1
    at_end = high == top or (signed and low <= -top) or (not signed and reached >= top // 2)
    if not 1 < bits < 8 or not at_end:
        return None
    levels = signed_levels(bits) if signed else offset_levels(bits, 0)
    shown = replace(source, grid=replace(grid, levels=levels, bits_told=True))
    return replace(tensor, source=shown, codec=shown.grid.codec())


def make_packed(
    name: str,
    shape: tuple[int, ...],
    packing: str,
    parts: tuple[StoredTensor, ...],
    source: RowBytes,
    *,
    shape_known: bool = True,
) -> StoredTensor:
    """Return a packed weight as the tensor that it stands for."""
    return StoredTensor(
        name=name,
        shape=shape,
        codec=source.grid.codec(),
        source=source,
        file=parts[0].file,
        packing=packing,
        parts=parts,
        shape_known=shape_known,
    )
