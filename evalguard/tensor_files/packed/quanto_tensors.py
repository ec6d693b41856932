"""optimum-quanto's weights as its state dict has them: ``weight._data`` and ``weight._scale`` of 8
bits; of 2 and 4 bits ``weight._data._data``, ``weight._scale`` and ``weight._shift``, in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.levels import offset_levels
from evalguard.tensor_files.packed.parts import PackingError, Parts, load_once
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.packed.scaled_codes import levels_of, make_scaled
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]


def read_quanto_bytes(parts: Parts) -> StoredTensor:
    """Return a weight of 8 bits: value = code * scale, one scale a row (QBytesDequantizer)."""
    codes, scale = parts.take(".weight._data"), parts.take(".weight._scale")
    name = f"{parts.stem}.weight"
    levels = levels_of(codes.dtype)
    return make_scaled(name, codes, scale, f"quanto {codes.dtype}", parts, levels=levels)


def read_quanto_bits(parts: Parts) -> StoredTensor:
    """Return a weight of 2 or 4 bits, as groups: the file does not say how many rows it has.

    value = (code - shift) * scale of a whole shift, code * scale - shift of a float one
    (QBitsDequantizer). Codes are packed along the groups: part i of them is in the i-th bits of a
    byte (optimum.quanto.tensor.packed.pack_weights).
    """
    packed = parts.take(".weight._data._data", "uint8", ndim=2)
    scale, shift = parts.take(".weight._scale"), parts.take(".weight._shift")
    groups, (height, width) = scale.elements, packed.shape
    if scale.shape != (groups, 1) or shift.elements != groups or not height:
        raise PackingError(
            f"{packed.name} {list(packed.shape)}, {scale.name} {list(scale.shape)}: evalguard "
            "knows groups of rows only"
        )
    bits = 8 // -(-groups // height)
    if bits not in (2, 4) or -(-groups // (8 // bits)) != height:
        raise PackingError(f"{groups:,} groups in {height:,} rows of {packed.name}")
    whole = not shift.dtype.startswith(("float", "bfloat"))
    grid = RowGrid(levels=offset_levels(bits, 0), columns=width, has_zeros=True)
    steps, shifts = load_once(scale), load_once(shift)

    def read(first: int, stop: int) -> PackedRows:
        part, row = np.divmod(np.arange(first, stop), height)
        begin, end = int(row.min()), int(row.max()) + 1
        if part[0] != part[-1]:
            begin, end = 0, height
        raw = packed.read_bytes(begin * width, end * width).reshape(-1, width)[row - begin]
        codes = (raw >> (bits * part[:, None]).astype(np.uint8)) & np.uint8(2**bits - 1)
        size = steps().reshape(-1, 1)[first:stop]
        taken = shifts().reshape(-1, 1)[first:stop]
        if not whole:
            with np.errstate(divide="ignore", invalid="ignore"):
                taken = np.where(size == 0, 0, taken / size)
        return PackedRows(codes=codes, scales=size, zeros=taken)

    name = f"{parts.stem}.weight"
    source = RowBytes(name=name, grid=grid, rows=groups, read_rows=read)
    used = tuple(parts.used.values())
    return make_packed(name, (groups, width), f"quanto int{bits}", used, source, shape_known=False)
