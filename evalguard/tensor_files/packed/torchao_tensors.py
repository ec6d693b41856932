"""torchao's tensor subclasses as its safetensors support flattens them: "0._weight_qdata",
"0._weight_scale", and in the file's metadata the class and attributes of "0.weight"
(torchao.prototype.safetensors.safetensors_support.flatten_tensor_state_dict)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.four_bit_floats import check_whole, make_e2m1
from evalguard.tensor_files.packed.levels import offset_levels, signed_levels
from evalguard.tensor_files.packed.parts import (
    PackingError,
    Parts,
    check_shape,
    count_rows,
    load_once,
    read_row_bytes,
)
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.packed.scaled_codes import make_scaled
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]


def find_torchao(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return name -> class and attributes of the tensor subclasses that metadata names."""
    subclasses: dict[str, Mapping[str, Any]] = {}
    for name, text in metadata.items():
        if not isinstance(text, str) or not text.startswith("{") or '"_type"' not in text:
            continue
        try:
            declared = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(declared, dict) and declared.get("_type") != "Tensor":
            subclasses[name] = declared
    return subclasses


def read_torchao(name: str, parts: Parts, told: Mapping[str, Any]) -> StoredTensor:
    """Return the weight of a tensor subclass.

    Args:
        parts: by the attribute's name: "qdata", "scale", "zero_point".
        told: its class and attributes.

    Raises:
        PackingError: the class is not known, or its parts do not fit.
    """
    kind, own = str(told.get("_type")), told.get("_data")
    own = own if isinstance(own, dict) else {}
    packing = f"torchao {kind}"
    if own.get("is_swizzled_scales"):
        raise PackingError("its scales are swizzled for a GPU, which evalguard does not undo")
    codes, scale = parts.take("qdata"), parts.take("scale")
    for extra in ("act_quant_scale", "act_quant_zero_point", "act_per_tensor_scale"):
        parts.find(extra)
    smooth = parts.find("act_pre_scale")
    named = told.get("_tensor_data_names")
    for part_name in named if isinstance(named, list) else ():
        parts.take(str(part_name))
    sizes = own.get("block_size")
    known = isinstance(sizes, list) and all(isinstance(size, int) and size > 0 for size in sizes)
    blocks = tuple(sizes) if isinstance(sizes, list) and known else ()
    if kind == "Float8Tensor":
        return make_scaled(name, codes, scale, packing, parts, blocks=blocks)
    if kind in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
        target = own.get("target_dtype")
        bits = str(target.get("_data")) if isinstance(target, dict) else "int8"
        if not bits.startswith("int") or not bits[3:].isdigit() or codes.dtype != "int8":
            raise PackingError(f"evalguard does not know {kind} of {bits} in {codes.dtype}")
        return make_scaled(
            name,
            codes,
            scale,
            packing,
            parts,
            zero_point=parts.find("zero_point"),
            levels=signed_levels(int(bits[3:])),
            blocks=blocks,
            factors=smooth,
        )
    if kind == "Int4Tensor":
        return _read_int4(name, codes, scale, parts, packing, smooth)
    if kind == "NVFP4Tensor":
        second = parts.find("per_tensor_scale")
        if second is not None:
            check_whole(second, codes)
        whole = None if second is None else load_once(second)
        return make_e2m1(name, codes, scale, packing, parts, whole=whole)
    if kind == "MXTensor" and codes.dtype == "uint8":
        return make_e2m1(name, codes, scale, packing, parts)
    if kind == "MXTensor" and codes.dtype.startswith("float8"):
        return make_scaled(name, codes, scale, packing, parts)
    raise PackingError(f"evalguard does not know torchao's {kind}")


def _read_int4(
    name: str,
    codes: StoredTensor,
    scale: StoredTensor,
    parts: Parts,
    packing: str,
    smooth: StoredTensor | None,
) -> StoredTensor:
    """Return a weight of Int4Tensor: (rows, columns / 2) bytes of two's complement, scale and
    zero_point (groups, rows); value = code * scale + zero_point."""
    zero = parts.take("zero_point")
    if len(codes.shape) != 2 or len(scale.shape) != 2:
        raise PackingError(f"{codes.name} of {list(codes.shape)} is no matrix")
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    groups = scale.shape[0]
    for tensor in (scale, zero):
        check_shape(tensor, (groups, rows), f"{codes.name} {list(codes.shape)}")
    if not groups or columns % groups:
        raise PackingError(f"{groups:,} groups do not fit {columns:,} columns")
    grid = RowGrid(
        levels=offset_levels(4, 8),
        columns=columns,
        groups=groups,
        nibbles=True,
        has_zeros=True,
        factors=None if smooth is None else load_once(smooth)().reshape(-1),
    )
    steps, shifts = load_once(scale), load_once(zero)

    def read(first: int, stop: int) -> PackedRows:
        size = steps().T[first:stop]
        with np.errstate(divide="ignore", invalid="ignore"):
            taken = np.where(size == 0, 0, -shifts().T[first:stop] / size)
        # two's complement to offset
        laid = read_row_bytes(codes, first, stop) ^ np.uint8(0x88)
        return PackedRows(codes=laid, scales=size, zeros=taken)

    shape = (rows, columns)
    source = RowBytes(name=name, grid=grid, rows=count_rows(shape), read_rows=read)
    return make_packed(name, shape, packing, tuple(parts.used.values()), source)
