"""Whole numbers of 1 to 8 bits, packed one after the other from the lowest bit on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LINE = 64  # bytes


def split_nibbles(packed: Array) -> Array:
    """Return the two numbers of each byte of the last axis, the lower first."""
    pairs = packed.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def exchange_nibbles(packed: Array) -> Array:
    """Return bytes whose higher four bits are the lower ones."""
    kind = "u8" if packed.shape[-1] % 8 == 0 else "u1"  # numpy shifts single bytes slowly
    words: Array = np.ascontiguousarray(packed).view(kind)
    lower = np.array(0x0F0F0F0F0F0F0F0F).astype(kind)
    found: Array = (words & lower) << 4
    found |= (words >> 4) & lower
    return found.view(np.uint8)


def unpack_bits(words: Array, bits: int) -> Array:
    """Return the numbers packed along the last axis of int32 words.

    Dense, as compressed-tensors (pack_to_int32) and GPTQ pack: of 3 bits, 32 lie in 3 words.

    Args:
        words: (..., words) of 4 bytes each, little-endian.
        bits: 1 to 8.
    """
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    if bits == 4:
        return split_nibbles(packed)
    flags = np.unpackbits(packed, axis=-1, bitorder="little")
    usable = flags.shape[-1] // bits * bits
    grid = flags[..., :usable].reshape(*flags.shape[:-1], -1, bits)
    return np.packbits(grid, axis=-1, bitorder="little")[..., 0]


def lay_codes(words: Array, bits: int, columns: int, *, nibbles: bool) -> Array:
    """Return the first ``columns`` numbers of rows of words: one a byte, or two of 4 bits.

    Args:
        words: (rows, words) of 4 bytes each.
    """
    if not nibbles:
        return unpack_bits(words, bits)[:, :columns]
    return np.ascontiguousarray(words).view(np.uint8)[:, : columns // 2]


def transpose(table: Array) -> Array:
    """Return rows as columns, in memory too; read by lines of a core's cache, four times as fast
    as numpy does it."""
    found = np.empty(table.shape[::-1], dtype=table.dtype)
    step = max(_LINE // table.itemsize, 1)
    for first in range(0, len(table), step):
        found[:, first : first + step] = table[first : first + step].T
    return found
