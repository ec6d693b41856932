"""A packed weight against the plain one that it was made from, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.block_fit import BlockFit, choose_width
from evalguard.run.tensors.streaming import StoredPair
from evalguard.store.tensor_files.packed.row_codec import RowBytes, RowGrid

Array = NDArray[Any]

_PIECE = 1 << 18  # elements that are read at a time


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
    group_of, order = grid.group_of, None
    group = grid.columns // max(grid.groups, 1)
    if group_of is not None:
        order = np.argsort(group_of, kind="stable")
        counts = np.bincount(group_of)
        group = int(counts[0]) if (counts == counts[0]).all() else grid.columns
        if (np.diff(order) == 1).all():
            order = None
    if group < 8:  # a scale for each column or so: columns say nothing together
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
