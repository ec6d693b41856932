"""Integers and 8-bit floats with a scale beside them, one code an element.

compressed-tensors' int-, float- and naive-quantized, DeepSeek's blocks of float8, ModelOpt's FP8,
bitsandbytes' int8 rows, MXFP8: value = (code - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import CAST
from evalguard.tensor_files.packed.levels import Levels, float8_levels, offset_levels, signed_levels
from evalguard.tensor_files.packed.parts import (
    PackingError,
    Parts,
    SpreadScale,
    count_rows,
    load_once,
    power_of_two,
    read_row_bytes,
)
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]


def levels_of(dtype: str) -> Levels:
    """Return the levels of a dtype of one byte."""
    if dtype == "int8":
        return signed_levels(8)
    return offset_levels(8, 0) if dtype == "uint8" else float8_levels(dtype)


def make_scaled(
    name: str,
    codes: StoredTensor,
    scale: StoredTensor,
    packing: str,
    parts: Parts,
    *,
    zero_point: StoredTensor | None = None,
    levels: Levels | None = None,
    blocks: Sequence[int] = (),
    change: Callable[[Array], Array] | None = None,
    factors: StoredTensor | None = None,
) -> StoredTensor:
    """Return the weight that codes and a scale beside them stand for.

    Args:
        levels: None: those of the codes' dtype, where nothing says how many of its bits are used.
        change: makes the numbers of the stored scale.
        factors: what each column is multiplied with.

    Raises:
        PackingError: they do not fit one another.
    """
    if scale.dtype == "uint8":
        change = power_of_two
    laid = SpreadScale(scale, codes.shape, blocks=blocks, change=change)
    zeros = None
    if zero_point is not None:
        zeros = SpreadScale(zero_point, codes.shape, blocks=blocks)
        if zeros.groups not in (1, laid.groups):
            raise PackingError(
                f"a zero point of {list(zero_point.shape)} does not fit a scale of "
                f"{list(scale.shape)}"
            )
    grid = RowGrid(
        levels=levels or levels_of(codes.dtype),
        columns=codes.shape[-1],
        groups=laid.groups,
        has_zeros=zeros is not None,
        bits_told=levels is not None,
        # a library that stores such a scale divides by it in bfloat16, too
        lost=2 * CAST if scale.dtype == "bfloat16" else CAST,
        group_of=laid.group_of,
        factors=None if factors is None else load_once(factors)().reshape(-1),
    )
    if grid.factors is not None and grid.factors.size != grid.columns:
        raise PackingError(f"{grid.factors.size:,} factors of {grid.columns:,} columns")

    def read(first: int, stop: int) -> PackedRows:
        return PackedRows(
            codes=read_row_bytes(codes, first, stop),
            scales=laid.rows(first, stop),
            zeros=None if zeros is None else zeros.rows(first, stop),
        )

    source = RowBytes(name=name, grid=grid, rows=count_rows(codes.shape), read_rows=read)
    return make_packed(name, codes.shape, packing, tuple(parts.used.values()), source)


def read_scaled(parts: Parts) -> StoredTensor:
    """Return the weight of codes of one byte that have a scale beside them.

    Args:
        parts: by what follows the name of the codes: "_scale", "_scale_inv", "_zero_point".
    """
    codes = parts.take("")
    scale, inverse = parts.find("_scale"), parts.find("_scale_inv")
    if scale is None and inverse is None:
        raise PackingError(f"it is stored as {codes.dtype}, and {parts.stem}_scale is missing")
    zero_point = parts.find("_zero_point")
    if codes.dtype == "uint8" and zero_point is None:  # no weight is all above 0 (BitNet packs so)
        raise PackingError(
            f"{codes.name} is uint8 without a zero point: evalguard does not know what its bytes "
            "stand for"
        )
    blocks = parts.told.weight_block or ((128, 128) if inverse is not None else ())
    used = scale if scale is not None else inverse
    assert used is not None
    return make_scaled(
        parts.stem,
        codes,
        used,
        parts.told.name or f"{codes.dtype} with a scale",
        parts,
        zero_point=zero_point,
        levels=_told_levels(parts.told.integer_bits, codes.dtype),
        blocks=blocks if len(used.shape) >= 2 else (),
        factors=parts.find_smoothing(),
    )


def _told_levels(bits: int, dtype: str) -> Levels | None:
    if not bits or dtype not in ("int8", "uint8"):
        return None
    return signed_levels(bits) if dtype == "int8" else offset_levels(bits, 0)


def read_bitsandbytes_int8(parts: Parts) -> StoredTensor:
    """Return the weight of LLM.int8() rows: SCB is the greatest element of a row, which stands for
    127 (bitsandbytes.functional.int8_vectorwise_dequant)."""
    codes = parts.take(".weight", "int8")
    form = parts.find(".weight_format")
    if form is not None and np.any(form.load()):
        raise PackingError(f"{form.name} is {form.load().reshape(-1)[0]}, not 0 (rows)")
    scale = parts.take(".SCB")
    seventh = np.float32(1 / 127)
    return make_scaled(
        f"{parts.stem}.weight",
        codes,
        scale,
        "bitsandbytes int8",
        parts,
        levels=signed_levels(8),
        change=lambda greatest: greatest * seventh,
    )
