"""Packed weights that were rescaled by channel, and the tensors that take the factors back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.tensors_report import Likeness, TensorDelta
from evalguard.core.tensors.channel_factors import (
    ChannelFactors,
    find_channel_factors,
    solve_rows,
    take_back,
)
from evalguard.run.tensors.streaming import StoredPair
from evalguard.store.tensor_files.packed.row_codec import RowBytes

Array = NDArray[Any]

_SAMPLE = 1 << 21  # elements by which factors of columns are known to about 1%
_PIECE = 1 << 20
_LARGEST = 1 << 24  # elements of a plain tensor that is read whole
_PART = 0.25  # of what a ratio has to explain
_LAYER = re.compile(r"(.*?\.\d+\.)")


def find_rescaling(pair: StoredPair) -> ChannelFactors | None:
    """Return the factors by which a packed candidate's rows and columns were multiplied."""
    if not isinstance(pair.candidate.source, RowBytes) or not pair.lies_alike:
        return None
    if len(pair.base.shape) != 2 or pair.base.codec.quantised:
        return None
    count, columns = pair.base.shape
    found = find_channel_factors(*_sample(pair))
    if found is None or found.rows is None:
        return found
    height = max(_PIECE // columns, 1)
    rows = [
        solve_rows(
            _read(pair.base, first, min(first + height, count)),
            _read(pair.candidate, first, min(first + height, count)),
            found.columns,
        )
        for first in range(0, count, height)
    ]
    return ChannelFactors(columns=found.columns, rows=np.concatenate(rows))


def _sample(pair: StoredPair) -> tuple[Array, Array]:
    """Return some whole rows of both sides."""
    count, columns = pair.base.shape
    places = np.unique(np.linspace(0, count - 1, max(16, _SAMPLE // columns)).astype(np.intp))
    ours, theirs = (
        np.stack([_read_row(side, int(row), columns) for row in places])
        for side in (pair.base, pair.candidate)
    )
    return ours.astype(np.float64), theirs.astype(np.float64)


def _read_row(tensor: Any, row: int, columns: int) -> Array:
    block = tensor.codec.block
    start, stop = row * columns, (row + 1) * columns
    begin, end = start // block * block, -(-stop // block) * block
    found: Array = tensor.read(begin, end)[start - begin : stop - begin]
    return found


def _read(tensor: Any, first: int, stop: int) -> Array:
    columns = tensor.shape[-1]
    found: Array = tensor.read(first * columns, stop * columns).reshape(-1, columns)
    return found


def explain_plain(
    pair: StoredPair,
    delta: TensorDelta,
    rescaled: Mapping[str, ChannelFactors],
    others: Sequence[StoredPair],
) -> Likeness | None:
    """Say whose factors a plain tensor takes back, or shares; None if it does not.

    A norm is divided by the columns' factors of the weights that it comes before, a bias is
    multiplied with those of its weight's rows, a router is rescaled as its neighbours are.

    Args:
        rescaled: name -> factors of the weights that have some.
        others: all pairs, of which those of the same layer are looked at.
    """
    if delta.state != "beyond" or pair.candidate.parts or pair.elements > _LARGEST:
        return None
    found = _LAYER.match(pair.name)
    layer = found.group(1) if found is not None else ""
    near = {name: factors for name, factors in rescaled.items() if name.startswith(layer)}
    if pair.base.shape != pair.candidate.shape or not pair.lies_alike:
        return None
    ours, theirs = (side.load().astype(np.float64) for side in (pair.base, pair.candidate))
    if ours.ndim == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((ours == 0) & (theirs == 0), np.nan, theirs / ours)
        for name, factors in near.items():
            if take_back(ratio, factors.columns):
                return _likeness(f"by the inverse of the columns of {name}")
            if factors.rows is not None and take_back(1 / ratio, factors.rows):
                return _likeness(f"as the rows of {name}")
        for other in others:
            if other.name.startswith(layer) and _holds_inverse(other, ratio):
                return _likeness(f"by the inverse of the columns of {other.name}")
        return None
    own = find_channel_factors(ours, theirs) if ours.ndim == 2 else None
    if own is None or own.rows is not None:
        return None
    for name, factors in near.items():
        if take_back(1 / own.columns, factors.columns):
            return _likeness(f"as the columns of {name}")
    return None


def _holds_inverse(pair: StoredPair, ratio: Array) -> bool:
    """Whether a packed weight's columns are divided by a ratio, which its rounding may hide: then
    that explains a part of its error that is as large as it has to be."""
    shape = pair.base.shape
    plain = pair.lies_alike and not pair.base.codec.quantised and shape == pair.candidate.shape
    if not plain or not pair.candidate.parts or len(shape) != 2 or shape[1] != ratio.size:
        return False
    if not np.isfinite(ratio).all() or ratio.min() <= 0:
        return False
    ours, theirs = _sample(pair)
    change = ours * (1 / ratio - 1)
    squares = float(np.sum(change * change))
    part = float(np.sum(change * (theirs - ours))) / squares if squares else 0.0
    return abs(part - 1) < _PART


def name_rescaling(factors: ChannelFactors) -> Likeness:
    """Return what a rescaled weight looks like."""
    return _likeness(f"{factors.words}, as AWQ and SmoothQuant do; otherwise within its format")


def _likeness(detail: str) -> Likeness:
    return Likeness(kind="structure", name="rescaled", fault="rescaled", detail=detail)
