"""bitsandbytes' nf4 and fp4 as saved: blocks of the flat weight, their greatest elements beside
them, those quantised once more or not.

QuantState.from_dict and dequantize_4bit: value = table[code] * absmax; nested:
absmax = nested_quant_map[absmax code] * nested_absmax + nested_offset.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.levels import codebook_levels
from evalguard.tensor_files.packed.parts import PackingError, Parts, exchange_nibbles, load_once
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]
_STATE = ".weight.quant_state.bitsandbytes__"
_LARGEST_STATE = 1 << 16  # bytes


def read_bitsandbytes_4bit(parts: Parts) -> StoredTensor:
    """Return a 4-bit weight; the earlier element of a byte is in its higher bits.

    Raises:
        PackingError: parts are missing or do not fit.
    """
    kind = "nf4" if parts.stem + _STATE + "nf4" in parts.tensors else "fp4"
    state = parts.take(_STATE + kind, "uint8")
    packed, absmax = parts.take(".weight", "uint8"), parts.take(".weight.absmax")
    parts.find(".weight.quant_map")
    shape, blocksize, state_told = _read_state(state)
    if state_told.get("quant_type", kind) != kind:
        raise PackingError(f"{state.name} says {str(state_told['quant_type'])[:40]!r}, not {kind}")
    elements = math.prod(shape)
    if packed.elements != -(-elements // 2) or absmax.elements != -(-elements // blocksize):
        raise PackingError(
            f"{packed.name} has {packed.elements:,} bytes and {absmax.elements:,} blocks of "
            f"{blocksize}, {list(shape)} asks for {-(-elements // 2):,} and "
            f"{-(-elements // blocksize):,}"
        )
    nested = _read_nested(parts, state_told, absmax.elements)
    width = math.gcd(blocksize, elements)
    # whole rows of the weight where its blocks end with them, else a block at a time
    groups = shape[-1] // width if shape[-1] % blocksize == 0 else 1
    columns = groups * width
    if columns % 2:
        raise PackingError(f"{list(shape)} is an odd number of elements")
    grid = RowGrid(
        levels=codebook_levels(kind),
        columns=columns,
        groups=groups,
        nibbles=True,
        has_slack=nested is not None,
    )

    def read(first: int, stop: int) -> PackedRows:
        raw = packed.read_bytes(first * columns // 2, stop * columns // 2)
        begin = first * columns // blocksize
        sizes, slack = absmax.read(begin, -(-stop * columns // blocksize)), None
        if nested is not None:
            sizes, slack = nested.read(sizes.astype(np.intp), begin)
        if width < blocksize:  # the last of all is cut, or rows end within blocks
            blocks = np.arange(first * groups, stop * groups) * width // blocksize - begin
            sizes, slack = sizes[blocks], None if slack is None else slack[blocks]
        return PackedRows(
            codes=exchange_nibbles(raw).reshape(-1, columns // 2),
            scales=sizes.astype(np.float32, copy=False).reshape(-1, groups),
            slack=None if slack is None else slack.reshape(-1, groups),
        )

    name = f"{parts.stem}.weight"
    source = RowBytes(name=name, grid=grid, rows=elements // columns, read_rows=read)
    packing = f"bitsandbytes {kind}" + (", double quantised" if nested is not None else "")
    return make_packed(name, shape, packing, tuple(parts.used.values()), source)


def _read_state(state: StoredTensor) -> tuple[tuple[int, ...], int, dict[str, Any]]:
    if state.elements > _LARGEST_STATE:
        raise PackingError(f"{state.name} has {state.elements:,} bytes, far too many")
    try:
        content = json.loads(state.read_bytes().tobytes())
        shape = tuple(int(size) for size in content["shape"])
        blocksize = int(content["blocksize"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackingError(f"{state.name} does not say shape and block size") from error
    if blocksize < 1 or not shape or min(shape) < 1:
        raise PackingError(f"{state.name} says {list(shape)} in blocks of {blocksize}")
    return shape, blocksize, content


class _Nested:
    """Greatest elements that are quantised once more."""

    def __init__(self, absmax: StoredTensor, table: StoredTensor, told: dict[str, Any]) -> None:
        self._absmax, self._table = load_once(absmax), load_once(table)
        self._offset = np.float32(told["nested_offset"])
        self._blocksize = int(told["nested_blocksize"])

    def read(self, codes: Array, first: int) -> tuple[Array, Array]:
        """Return greatest elements from ``first`` on, and what each may be off by."""
        table = self._table().reshape(-1)
        size = self._absmax().reshape(-1)[np.arange(first, first + codes.size) // self._blocksize]
        known = np.unique(table)
        gaps = np.diff(known)
        greatest = np.maximum(np.append(gaps, 0.0), np.insert(gaps, 0, 0.0))
        reach = greatest[np.searchsorted(known, table)][codes] * np.float32(0.505)
        return table[codes] * size + self._offset, (reach * size).astype(np.float32)


def _read_nested(parts: Parts, told: dict[str, Any], blocks: int) -> _Nested | None:
    if "nested_offset" not in told:
        return None
    absmax = parts.take(".weight.nested_absmax")
    table = parts.take(".weight.nested_quant_map")
    if table.elements != 256:
        raise PackingError(f"{table.name} has {table.elements:,} numbers, not 256")
    offset, size = told["nested_offset"], told.get("nested_blocksize")
    if not isinstance(offset, int | float) or not isinstance(size, int) or size < 1:
        raise PackingError(f"{parts.stem}.weight says blocks of {size!r} with an offset {offset!r}")
    if absmax.elements != -(-blocks // size):
        raise PackingError(
            f"{absmax.name} has {absmax.elements:,} numbers, {blocks:,} in blocks of {size:,} ask "
            f"for {-(-blocks // size):,}"
        )
    return _Nested(absmax, table, told)
