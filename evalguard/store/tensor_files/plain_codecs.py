"""Codecs of plain numbers."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from evalguard.store.tensor_files.stored import Array, Bytes, TensorCodec

_NUMPY_NAMES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "i1", "uint64": "<u8", "uint32": "<u4", "uint16": "<u2", "uint8": "u1",
    "bool": "u1",
}  # fmt: skip


def plain_codec(dtype: str) -> TensorCodec | None:
    """Return the codec of a dtype by its name in torch, None for one that is not known."""
    if dtype in _NUMPY_NAMES:
        return numpy_codec(np.dtype(_NUMPY_NAMES[dtype]), name=dtype)
    if dtype == "bfloat16":
        return TensorCodec(dtype=dtype, size=2, decode=_decode_bfloat16)
    if dtype in _EIGHT_BITS:
        table = _eight_bit_table(dtype)
        return TensorCodec(dtype=dtype, size=1, decode=partial(_look_up, table))
    return None


def unknown_codec(dtype: str) -> TensorCodec:
    """Return a codec that only names its dtype, of a tensor that cannot be read."""
    return TensorCodec(dtype=dtype.lower(), size=1, decode=lambda raw: raw)


def numpy_codec(dtype: np.dtype[Any], *, name: str = "") -> TensorCodec:
    """Return the codec of a numpy dtype; float16 is decoded to float32, complex to pairs."""

    def decode(raw: Bytes) -> Array:
        values = raw.view(dtype)
        if dtype.kind == "f" and dtype.itemsize == 2:
            return values.astype(np.float32)
        return values if dtype.isnative else values.astype(dtype.newbyteorder("="))

    return TensorCodec(dtype=name or dtype.name, size=dtype.itemsize, decode=decode)


def _look_up(table: Array, raw: Bytes) -> Array:
    return np.take(table, raw, mode="wrap")  # not checked: all bytes are there


def _decode_bfloat16(raw: Bytes) -> Array:
    wide = raw.view("<u2").astype(np.uint32)
    wide <<= np.uint32(16)
    values: Array = wide.view(np.float32)
    return values


# name -> (bits of exponent, of mantissa, bias, whether it has infinities as IEEE 754)
_EIGHT_BITS = {
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e5m2": (5, 2, 15, True),
    "float8_e4m3fnuz": (4, 3, 8, False),
    "float8_e5m2fnuz": (5, 2, 16, False),
    "float8_e8m0fnu": (8, 0, 127, False),
}


@lru_cache
def _eight_bit_table(dtype: str) -> Array:
    """Return the 256 values of an 8-bit float (OCP 8-bit floating point, 1.0; fnuz: one NaN)."""
    exponent_bits, mantissa_bits, bias, ieee = _EIGHT_BITS[dtype]
    codes = np.arange(256)
    if not mantissa_bits:  # a power of two without a sign
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    values = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    values = np.where(codes >= 128, -values, values)
    if ieee:
        special = exponent == 2**exponent_bits - 1
        infinite = np.where(codes >= 128, -np.inf, np.inf)
        values = np.where(special, np.where(mantissa == 0, infinite, np.nan), values)
    elif dtype.endswith("fnuz"):
        values[128] = np.nan
    else:
        values[codes & 127 == 127] = np.nan
    table: Array = values.astype(np.float32)
    return table
