"""The rows of a stored pair read once more, in pieces: which of them are damaged, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.bounds import CAST
from evalguard.core.tensors.grid import Grid, measure_steps
from evalguard.core.tensors.precision_vote import Rounding
from evalguard.core.tensors.rows import RowFault, RowScan, find_row_faults
from evalguard.core.tensors.untrained import count_untrained
from evalguard.models.weight_places import may_have_heads
from evalguard.run.tensors.streaming import StoredPair, bound_parts, load_bounded

Array = NDArray[Any]

_PIECE = 1 << 18  # elements that are read at a time
_LEAST_COLUMNS = 8  # rows of fewer numbers have nothing to be known by
_MOST_ROWS = 1 << 22
# Where more rows than this are beyond a bound, the bound is not what tells them apart.
_MOST_DAMAGED = 0.25


def shape_rows(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how many rows a tensor has, and of how many elements; None where it has none."""
    if len(shape) < 2 or 0 in shape:
        return None
    columns = shape[-1]
    if columns < _LEAST_COLUMNS:  # a convolution's kernels: by output channel
        columns = int(np.prod(shape[1:]))
    rows = int(np.prod(shape)) // columns
    return (rows, columns) if columns >= _LEAST_COLUMNS and 2 <= rows <= _MOST_ROWS else None


def count_untrained_elements(pair: StoredPair, unequal: int) -> int:
    """Return how many elements of a pair lie in rows in which nothing was trained."""
    shape = shape_rows(pair.base.shape)
    if unequal == 0:
        return pair.elements
    if shape is None or unequal == pair.elements:
        return 0
    rows, columns = shape
    reader, step = PairRows(pair, rows, columns), max(_PIECE // columns, 1)
    unchanged = np.zeros(rows, dtype=np.int64)
    for first in range(0, rows, step):
        base, candidate, _ = reader.read(first, min(first + step, rows))
        unchanged[first : first + len(base)] = np.count_nonzero(base == candidate, axis=1)
    return count_untrained(unchanged, columns)


@dataclass(slots=True)
class PairRows:
    """Rows of both sides of a pair, as the base holds them, and how far each may be off."""

    pair: StoredPair
    rows: int
    columns: int
    expected: Callable[[Array, Array], Array] | None = None
    _whole: list[Array] = field(default_factory=list)

    def read(self, first: int, stop: int) -> tuple[Array, Array, Array]:
        """Return base, candidate and allowed errors of the rows ``first`` to ``stop``."""
        if not self._lies_in_blocks:
            return self._read_whole(first, stop)
        begin, end = first * self.columns, stop * self.columns
        raw = [one.read_bytes(begin, end) for one in (self.pair.base, self.pair.candidate)]
        values = [
            one.codec.decode(part)
            for one, part in zip((self.pair.base, self.pair.candidate), raw, strict=True)
        ]
        base, candidate = (one.reshape(-1, self.columns).astype(np.float32) for one in values)
        bound = bound_parts(self.pair, raw, values) if self.pair.is_bounded else None
        allowed = None if bound is None else bound.excuse(*values).reshape(-1, self.columns)
        return base, candidate, self._allowed(base, candidate, allowed)

    def pick(self, rows: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return the same of some rows."""
        parts = [self.read(row, row + 1) for row in rows.tolist()]
        found = [np.concatenate([part[number] for part in parts]) for number in range(3)]
        return found[0], found[1], found[2]

    @property
    def _lies_in_blocks(self) -> bool:
        blocks = (self.pair.base.codec.block, self.pair.candidate.codec.block)
        return self.pair.lies_alike and not any(self.columns % block for block in blocks)

    def _read_whole(self, first: int, stop: int) -> tuple[Array, Array, Array]:
        if not self._whole:
            moved, allowed = load_bounded(self.pair)
            self._whole = [self.pair.base.load(), moved, *([] if allowed is None else [allowed])]
        parts = [one.reshape(-1, self.columns)[first:stop] for one in self._whole]
        base, candidate = (one.astype(np.float32) for one in parts[:2])
        bound = parts[2] if len(parts) > 2 else None
        return base, candidate, self._allowed(base, candidate, bound)

    def _allowed(self, base: Array, candidate: Array, bound: Array | None) -> Array:
        if bound is not None:
            return bound
        if self.expected is not None:
            return self.expected(base, candidate)
        tolerance = self.pair.tolerance
        allowed: Array = np.abs(base) * np.float32(tolerance.rtol)
        allowed += np.float32(tolerance.atol)
        return allowed


def name_rows(pair: StoredPair, rows: NDArray[np.intp]) -> tuple[RowFault, ...]:
    """Say what was done to whole rows that are known to be damaged; () of what says only where."""
    shape = shape_rows(pair.base.shape)
    if shape is None or not rows.size:
        return ()
    reader = PairRows(pair, *shape)
    heads = may_have_heads(pair.name)
    found = find_row_faults(_fill(reader), rows, reader.pick, heads=heads)
    blocks = ("blocks ", "rows damaged")
    return tuple(one for one in found if not one.fault.startswith(blocks))


def scan_rows(
    pair: StoredPair, expected: Callable[[Array, Array], Array] | None = None
) -> tuple[RowFault, ...]:
    """Say which rows and blocks of a pair are damaged; () where none stand out.

    Args:
        expected: the greatest error of each element, of whole rows of base and candidate, in place
            of what the tolerance allows; of a rounding that nobody declared.
    """
    shape = shape_rows(pair.base.shape)
    if shape is None:
        return ()
    reader = PairRows(pair, *shape, expected)
    scan = _fill(reader)
    heads = may_have_heads(pair.name)
    damaged = beyond = np.flatnonzero(scan.beyond)
    strict = pair.is_bounded and not pair.candidate.parts
    if damaged.size > _MOST_DAMAGED * shape[0] and not strict:
        whole = find_row_faults(scan, beyond, reader.pick, heads=heads)
        if scan.tells_apart(beyond) or scan.are_explained(whole, beyond):
            return whole
        outliers = scan.outliers()
        if 0 < outliers.size <= _MOST_DAMAGED * shape[0]:
            damaged = outliers
    if expected is None and not pair.is_bounded:
        damaged = scan.without_drift(damaged)
    if not damaged.size:
        return ()
    found = find_row_faults(scan, damaged, reader.pick, heads=heads)
    return scan.telling(found, beyond)


def _fill(reader: PairRows) -> RowScan:
    scan = RowScan.of(reader.rows, reader.columns)
    fill_scan(scan, reader, 0)
    return scan


def fill_scan(scan: RowScan, reader: PairRows, start: int) -> None:
    """Add all rows of a pair to a scan, from its row ``start`` on."""
    height = max(1, _PIECE // reader.columns)
    for first in range(0, reader.rows, height):
        scan.add(start + first, *reader.read(first, min(first + height, reader.rows)))


def expect_rounding(way: Rounding) -> Callable[[Array, Array], Array]:
    """Return what a recognised rounding may be off by: half as much again as its greatest error of
    32 elements."""

    def expect(base: Array, candidate: Array) -> Array:
        error = np.abs(way.round_values(base) - base)
        allowed: Array = np.abs(candidate) * np.float32(CAST)
        width = base.shape[1] if base.shape[1] % 32 else 32
        greatest = np.float32(1.5) * error.reshape(-1, width).max(axis=1, keepdims=True)
        allowed += np.repeat(greatest, width, axis=1).reshape(base.shape)
        return allowed

    return expect


def expect_grid(grid: Grid) -> Callable[[Array, Array], Array]:
    """Return what numbers on a grid may be off by: half a step, and some at its ends."""

    def expect(base: Array, candidate: Array) -> Array:
        allowed: Array = np.abs(candidate) * np.float32(CAST)
        steps = measure_steps(grid, base, candidate)
        if grid.shared in ("tensor", "mantissa"):
            allowed += np.float32(0.55) * steps
            return allowed
        if grid.shared == "column":  # where its ends are, a few rows cannot tell
            allowed += np.float32(2.05) * steps
            return allowed
        groups = candidate.reshape(-1, grid.group or base.shape[1])
        ends = (groups == groups.max(axis=1, keepdims=True)) | (
            groups == groups.min(axis=1, keepdims=True)
        )
        allowed += steps * (np.float32(0.55) + np.float32(1.5) * ends.reshape(base.shape))
        return allowed

    return expect
