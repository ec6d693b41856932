"""The numbers that a stored code may stand for before its scale: their values, and how far a
healthy rounding to the nearest of them is off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.parts import split_nibbles
from evalguard.tensor_files.stored_tensor import plain_codec

Array = NDArray[Any]
Column = Literal["values", "reach", "allowed", "farthest", "ends"]
_HALF = 0.505  # of a gap; half, and what float32 loses on the way
# OCP microscaling formats 1.0, table of FP4 (E2M1); the highest bit is the sign.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# bitsandbytes.functional.get_4bit_type: quantiles of a normal distribution (QLoRA,
# arXiv 2305.14314), and its own 4-bit float, over 12.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """A table of levels.

    Attributes:
        name: of the precision: "int4", "nvfp4", "nf4".
        values: (256,) float32, by code; what no code has is 0.
        reach: (256,) half the greater gap to the levels beside each, infinite where there is none.
        outer: (256,) what may be added at an end, where clipping cuts off; 0 elsewhere.
        ends: (256,) int8: 1 at the highest level, -1 at the lowest, else 0.
        signed: whether a code is its value, in two's complement.
    """

    name: str
    values: Array
    reach: Array
    outer: Array
    ends: Array
    signed: bool = False

    @property
    def span(self) -> tuple[float, float]:
        """The lowest level and the highest."""
        at_ends = self.values[self.ends != 0]  # two's complement has a value for bytes beside them
        known = at_ends if at_ends.size else self.values
        return float(known.min()), float(known.max())

    def look_up(self, column: Column, codes: Array, *, nibbles: bool) -> Array:
        """Return a column of the table, or what follows from it, for codes: a number for each.

        "allowed" is the greatest error of a rounding to a level, with what may be cut off at an
        end; "farthest" the greatest size of what is rounded to it.

        Args:
            codes: (rows, bytes): one a byte, or two with the earlier in the lower bits.
        """
        if codes.strides[-1] != 1:
            codes = np.ascontiguousarray(codes)
        if self.signed and column == "values":
            return codes.view(np.int8).astype(np.float32)
        if codes.shape[-1] % 2:  # one after the other
            table = _tabulate(self, column)
            return table[codes] if not nibbles else table[split_nibbles(codes)]
        several = _tabulate_pairs(self, column, nibbles=nibbles)
        pairs = np.take(several, codes.view(np.uint16), mode="wrap")  # not checked: all are there
        numbers: Array = pairs.view(np.int8 if column == "ends" else np.float32)
        return numbers.reshape(len(codes), -1)

    def less(self, zero: float) -> Levels:
        """Return the same levels with ``values`` less a zero point that all codes have."""
        return _shift(self, zero)


@lru_cache(maxsize=16)
def _shift(levels: Levels, zero: float) -> Levels:
    return replace(levels, values=levels.values - np.float32(zero), signed=False)


@lru_cache(maxsize=64)
def _tabulate(levels: Levels, column: Column) -> Array:
    if column == "allowed":
        return levels.reach + levels.outer
    if column == "farthest":
        return np.abs(levels.values) + levels.reach
    numbers: Array = getattr(levels, column)
    return numbers


@lru_cache(maxsize=16)
def _tabulate_pairs(levels: Levels, column: Column, *, nibbles: bool) -> Array:
    """Return the numbers of all codes in two bytes beside each other, as one item each: a table
    that fits a core's cache is looked up in a half or a quarter as often."""
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    table = _tabulate(levels, column)[split_nibbles(pairs) if nibbles else pairs]
    return table.view(f"V{table.shape[1] * table.itemsize}").reshape(-1)


def _make(name: str, values: Array, *, outer: float, tops: int = 1, bottoms: int = 1) -> Levels:
    """Return a table of the levels of all codes.

    Args:
        outer: in gaps at the end.
        tops, bottoms: how many levels at either end a clipping quantiser may end at.
    """
    known = np.unique(values[np.isfinite(values)])
    gaps = np.diff(known)
    greatest = np.maximum(np.append(gaps, 0.0), np.insert(gaps, 0, 0.0))
    positions = np.searchsorted(known, np.where(np.isfinite(values), values, 0.0))
    table = np.zeros((4, 256), dtype=np.float32)
    table[0, : len(values)] = values
    table[1, : len(values)] = _HALF * greatest[positions]
    high, low = positions >= len(known) - tops, positions < bottoms
    table[2, : len(values)] = outer * greatest[positions] * (high | low)
    table[3, : len(values)] = high.astype(np.float32) - low if outer else 0.0
    return Levels(
        name=name,
        values=table[0],
        reach=table[1],
        outer=table[2],
        ends=table[3].astype(np.int8),
    )


@lru_cache
def signed_levels(bits: int) -> Levels:
    """Return two's complement integers of up to 8 bits, by their byte.

    Quantisers leave the lowest of them out or not; both of the lowest two are ends.
    """
    values = np.arange(256, dtype=np.int16).astype(np.int8).astype(np.float32)
    inside = (values >= -(2 ** (bits - 1))) & (values < 2 ** (bits - 1))
    table = np.where(inside, values, np.nan)
    made = _make(f"int{bits}", table, outer=max(1.5, 2**bits / 16), bottoms=2)
    return replace(made, values=values, signed=True)


@lru_cache
def offset_levels(bits: int, offset: int) -> Levels:
    """Return integers of up to 8 bits that are stored with an offset, by their code."""
    values = np.arange(2**bits, dtype=np.float32) - offset
    return _make(f"int{bits}", values, outer=max(1.5, 2**bits / 16), bottoms=2 if offset else 1)


@lru_cache
def e2m1_levels(name: str) -> Levels:
    """Return the 4-bit floats of NVFP4 and MXFP4. A scale that is a power of two cuts off what is
    above 6 (up to 8)."""
    half = np.array(_E2M1, dtype=np.float32)
    return _make(name, np.concatenate([half, -half]), outer=0.55)


@lru_cache
def codebook_levels(name: str) -> Levels:
    """Return bitsandbytes' nf4 or fp4: a block's greatest element is the end of its grid."""
    if name == "nf4":
        return _make(name, np.array(_NF4, dtype=np.float32), outer=0.0)
    half = np.array(_FP4, dtype=np.float32) / np.float32(12.0)
    return _make(name, np.concatenate([half, -half]), outer=0.0)


@lru_cache
def float8_levels(dtype: str) -> Levels:
    """Return the 8-bit floats of a dtype's name, by their byte.

    Some quantisers end at the greatest level of another 8-bit format: 240 of e4m3's 448.
    """
    codec = plain_codec(dtype)
    assert codec is not None
    values = codec.decode(np.arange(256, dtype=np.uint8))
    made = _make(dtype, values, outer=1.0)
    greatest = np.abs(values) == (240.0 if "e4m3" in dtype else 57344.0)
    sign = np.sign(np.where(np.isfinite(values), values, 0.0)).astype(np.int8)
    return Levels(
        name=dtype,
        values=values,
        reach=made.reach,
        outer=np.where(greatest, 2 * made.reach, made.outer).astype(np.float32),
        ends=np.where(greatest, sign, made.ends).astype(np.int8),
    )
