"""NVFP4 and MXFP4: two 4-bit floats (E2M1) a byte, a scale of 8 bits for 16 or 32 of them.

Who wrote them is told by the names of the parts, and what the second scale means by who wrote them:
compressed-tensors divides by ``weight_global_scale`` (NVFP4PackedCompressor, dequantize), ModelOpt
multiplies with ``weight_scale_2`` (NVFP4QTensor.dequantize).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.levels import e2m1_levels
from evalguard.tensor_files.packed.parts import (
    PackingError,
    Parts,
    check_shape,
    count_rows,
    load_once,
    power_of_two,
    read_row_bytes,
    read_rows,
    split_nibbles,
    transpose,
)
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]
_BYTES = ("uint8", "int8")
_EXPONENTS = ("uint8", "float8_e8m0fnu")


def make_e2m1(
    name: str,
    packed: StoredTensor,
    scale: StoredTensor,
    packing: str,
    parts: Parts,
    *,
    whole: Callable[[], Array] | None = None,
    factors: StoredTensor | None = None,
) -> StoredTensor:
    """Return the weight of two 4-bit floats a byte.

    Args:
        packed: (..., columns / 2) bytes, the earlier element in the lower bits.
        scale: (..., groups): float8_e4m3fn for 16 elements, exponents for 32.
        whole: gives what every scale is multiplied with: one number, or one of each matrix.

    Raises:
        PackingError: they do not fit one another.
    """
    if packed.dtype not in _BYTES or len(packed.shape) < 2:
        raise PackingError(f"{packed.name} is {packed.dtype} {list(packed.shape)}, not bytes")
    shape = (*packed.shape[:-1], 2 * packed.shape[-1])
    exponents = scale.dtype in _EXPONENTS
    width = 32 if exponents else 16
    if not exponents and scale.dtype not in ("float8_e4m3fn", "float32", "bfloat16", "float16"):
        raise PackingError(
            f"{scale.name} is {scale.dtype}: evalguard knows no such scale of 4 bits"
        )
    if shape[-1] % width:
        raise PackingError(f"{packed.name} has {shape[-1]:,} columns, no multiple of {width}")
    check_shape(scale, (*shape[:-1], shape[-1] // width), f"{packed.name} {list(packed.shape)}")
    grid = RowGrid(
        levels=e2m1_levels("mxfp4" if exponents else "nvfp4"),
        columns=shape[-1],
        groups=shape[-1] // width,
        nibbles=True,
        factors=None if factors is None else load_once(factors)().reshape(-1),
    )
    if grid.factors is not None and grid.factors.size != grid.columns:
        raise PackingError(f"{grid.factors.size:,} factors of {grid.columns:,} columns")
    height = shape[-2]

    def read(first: int, stop: int) -> PackedRows:
        steps = read_rows(scale, first, stop).astype(np.float32, copy=False)
        if exponents and scale.dtype == "uint8":
            steps = power_of_two(steps)
        if whole is not None:
            size = whole().reshape(-1)
            matrices = np.arange(first, stop) // height
            steps *= size if size.size == 1 else size[matrices, None]
        return PackedRows(codes=read_row_bytes(packed, first, stop), scales=steps)

    source = RowBytes(name=name, grid=grid, rows=count_rows(shape), read_rows=read)
    return make_packed(name, shape, packing, tuple(parts.used.values()), source)


def check_whole(tensor: StoredTensor, packed: StoredTensor) -> None:
    """Refuse a second scale that is neither one number nor one of each matrix."""
    if tensor.elements not in (1, *(packed.shape[:1] if len(packed.shape) > 2 else ())):
        raise PackingError(
            f"{tensor.name} is of shape {list(tensor.shape)}, not one number a weight"
        )


def read_compressed_tensors_e2m1(parts: Parts) -> StoredTensor:
    """Return a weight of compressed-tensors' nvfp4- or mxfp4-pack-quantized."""
    packed = parts.take(".weight_packed", *_BYTES)
    scale = parts.take(".weight_scale")
    name = f"{parts.stem}.weight"
    if scale.dtype in _EXPONENTS:
        return make_e2m1(name, packed, scale, "compressed-tensors mxfp4", parts)
    second = parts.take(".weight_global_scale")
    check_whole(second, packed)

    def invert(values: Array) -> Array:
        if not values.all():
            raise PackingError(f"{second.name} is 0, and scales are divided by it")
        return np.float32(1) / values

    whole = load_once(second, invert)
    return make_e2m1(name, packed, scale, "compressed-tensors nvfp4", parts, whole=whole)


def read_modelopt_e2m1(parts: Parts) -> StoredTensor:
    """Return a weight of ModelOpt's NVFP4, or of its MXFP4, which has no second scale.

    Args:
        parts: by what follows the weight's own name: a stack of experts is no ``.weight``.
    """
    packed, scale = parts.take("", *_BYTES), parts.take("_scale")
    second = parts.find("_scale_2")
    smooth = parts.find_smoothing()
    if second is None:
        if scale.dtype not in _EXPONENTS:
            raise PackingError(f"{parts.stem}_scale_2 is missing")
        return make_e2m1(parts.stem, packed, scale, "ModelOpt mxfp4", parts, factors=smooth)
    check_whole(second, packed)
    return make_e2m1(
        parts.stem,
        packed,
        scale,
        "ModelOpt nvfp4",
        parts,
        whole=load_once(second),
        factors=smooth,
    )


def read_gpt_oss(parts: Parts) -> StoredTensor:
    """Return a stack of experts as gpt-oss stores it: ``_blocks`` (experts, rows, groups, 16) and
    ``_scales`` (experts, rows, groups).

    The weight is (experts, columns, rows), as transformers unpacks it
    (transformers.integrations.mxfp4.convert_moe_packed_tensors).
    """
    blocks, scale = parts.take("_blocks", "uint8"), parts.take("_scales", "uint8")
    if len(blocks.shape) != 4 or blocks.shape[-1] != 16:
        raise PackingError(f"{blocks.name} is of shape {list(blocks.shape)}, not (.., .., .., 16)")
    check_shape(scale, blocks.shape[:-1], f"{blocks.name} {list(blocks.shape)}")
    experts, rows, groups = scale.shape
    columns = groups * 32
    # read with rows and columns exchanged: each element then has the scale of its own column
    grid = RowGrid(levels=e2m1_levels("mxfp4"), columns=rows, groups=rows)

    def read(first: int, stop: int) -> PackedRows:
        expert, begin = divmod(first, columns)
        size = rows * groups * 16
        raw = blocks.read_bytes(expert * size, (expert + 1) * size).reshape(rows, -1)
        steps = power_of_two(
            scale.read(expert * rows * groups, (expert + 1) * rows * groups).reshape(rows, -1)
        )
        here = slice(begin, begin + stop - first)
        return PackedRows(
            codes=transpose(split_nibbles(raw))[here],
            scales=np.repeat(steps.T, 32, axis=0)[here],
        )

    source = RowBytes(
        name=parts.stem, grid=grid, rows=experts * columns, read_rows=read, at_once=columns
    )
    shape = (experts, columns, rows)
    return make_packed(parts.stem, shape, "gpt-oss mxfp4", tuple(parts.used.values()), source)
