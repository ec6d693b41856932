"""MLX's weights as mlx-lm saves them: words of 32 bits, ``scales``, and ``biases`` of affine ones.

Affine: value = code * scale + bias, of which each group of a row has its own; codes of 1 to 8 bits
lie one after the other from the lowest bit on. The modes mxfp4, mxfp8 and nvfp4 have scales of a
byte and no bias (mlx.core.quantize and dequantize).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from evalguard.tensor_files.packed.four_bit_floats import make_e2m1
from evalguard.tensor_files.packed.levels import float8_levels, offset_levels
from evalguard.tensor_files.packed.parts import (
    PackingError,
    Parts,
    check_shape,
    count_rows,
    lay_codes,
    read_rows,
)
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.packed.scaled_codes import make_scaled
from evalguard.tensor_files.stored_tensor import StoredTensor, plain_codec

_BITS, _WIDTHS = (1, 2, 3, 4, 5, 6, 8), (32, 64, 128)
_FLOATS = ("float16", "bfloat16", "float32")
# What rounding a scale to its dtype loses, after the codes were chosen by it: a part of it, and the
# most that a small one loses.
_LOST = {"bfloat16": (2.0**-8, 0.0), "float16": (2.0**-11, 2.0**-25), "float32": (0.0, 0.0)}
_LEAST = np.float32(1e-30)  # in place of a scale of 0, of which the bias alone is left


def read_mlx(parts: Parts) -> StoredTensor:
    """Return a weight of MLX, of any of its modes.

    Raises:
        PackingError: its parts do not fit one another, or nothing says how many bits a code has.
    """
    words, scale = parts.take(".weight", "uint32"), parts.take(".scales")
    bias = parts.find(".biases")
    if len(words.shape) < 2 or not words.shape[-1]:
        raise PackingError(f"{words.name} is of shape {list(words.shape)}, not rows of words")
    groups = scale.shape[-1] if scale.shape else 0
    check_shape(scale, (*words.shape[:-1], groups or 1), f"{words.name} {list(words.shape)}")
    if bias is None:
        return _read_floats(parts, words, scale)
    for part in (scale, bias):
        if part.dtype not in _FLOATS:
            raise PackingError(f"{part.name} is {part.dtype}, not {' or '.join(_FLOATS)}")
    check_shape(bias, scale.shape, f"{scale.name} {list(scale.shape)}")
    bits, width = _find_sizes(parts, words, groups)
    columns = groups * width
    share, least = (np.float32(factor) for factor in _LOST[scale.dtype])
    grid = RowGrid(
        levels=offset_levels(bits, 0),
        columns=columns,
        groups=groups,
        nibbles=bits == 4,
        has_zeros=True,
        has_slack=bool(share),
    )

    def read(first: int, stop: int) -> PackedRows:
        steps = read_rows(scale, first, stop).astype(np.float32)
        steps[steps == 0.0] = _LEAST
        shifts = read_rows(bias, first, stop).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            zeros = -shifts / steps
        return PackedRows(
            codes=lay_codes(read_rows(words, first, stop), bits, columns, nibbles=bits == 4),
            scales=steps,
            zeros=zeros,
            slack=np.maximum(np.abs(steps) * share, least) if share else None,
        )

    name, shape = f"{parts.stem}.weight", (*words.shape[:-1], columns)
    source = RowBytes(name=name, grid=grid, rows=count_rows(shape), read_rows=read)
    return make_packed(name, shape, f"MLX int{bits}", tuple(parts.used.values()), source)


def _find_sizes(parts: Parts, words: StoredTensor, groups: int) -> tuple[int, int]:
    """Return the bits of a code and the columns of a group, by what config.json says of the module
    or of all, else by the only sizes that fit."""
    total, rest = divmod(32 * words.shape[-1], groups)
    module_settings = parts.told.settings.get(parts.stem)
    settings = module_settings if isinstance(module_settings, Mapping) else parts.told.settings
    bits, width = _size(settings, "bits"), _size(settings, "group_size")
    fitting = [
        (bit_count, group_size)
        for bit_count in _BITS
        for group_size in _WIDTHS
        if not rest
        and bit_count * group_size == total
        and bits in (0, bit_count)
        and width in (0, group_size)
    ]
    if len(fitting) != 1:
        named = f"{bits} bits in groups of {width}" if bits and width else "how many bits it has"
        raise PackingError(
            f"{words.name} has {words.shape[-1]:,} words and {groups:,} groups a row, which "
            + (f"{named} do not fill" if not fitting else f"do not say {named}, nor config.json")
        )
    return fitting[0]


def _size(said: Mapping[str, Any], key: str) -> int:
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _read_floats(parts: Parts, words: StoredTensor, scale: StoredTensor) -> StoredTensor:
    """Return a weight of mxfp4, mxfp8 or nvfp4, which the bytes of a group tell apart."""
    if scale.dtype != "uint8":
        raise PackingError(f"{parts.stem}.biases is missing, and {scale.name} is {scale.dtype}")
    size = 4 * words.shape[-1]
    name, shape = f"{parts.stem}.weight", (*words.shape[:-1], size)
    each, rest = divmod(size, scale.shape[-1] or 1)
    if rest or each not in (8, 16, 32):
        raise PackingError(
            f"{scale.name} has {scale.shape[-1]:,} scales a row, which do not fit {size:,} bytes"
        )
    if each == 32:
        codes = _view(words, "float8_e4m3fn", shape)
        levels = float8_levels("float8_e4m3fn")
        return make_scaled(name, codes, scale, "MLX mxfp8", parts, levels=levels)
    packed = _view(words, "uint8", shape)
    if each == 16:
        return make_e2m1(name, packed, scale, "MLX mxfp4", parts)
    fourth = _view(scale, "float8_e4m3fn", scale.shape)
    return make_e2m1(name, packed, fourth, "MLX nvfp4", parts)


def _view(tensor: StoredTensor, dtype: str, shape: tuple[int, ...]) -> StoredTensor:
    """Return the same bytes as a dtype of one byte."""
    codec = plain_codec(dtype)
    assert codec is not None
    return replace(tensor, codec=codec, shape=shape)
