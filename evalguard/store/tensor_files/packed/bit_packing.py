"""Whole numbers of 1 to 8 bits, packed one after the other from the lowest bit on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def split_nibbles(packed: Array) -> Array:
    """Return the two numbers of each byte of the last axis, the lower first."""
    found = np.empty((*packed.shape, 2), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=found[..., 0])
    np.right_shift(packed, 4, out=found[..., 1])
    return found.reshape(*packed.shape[:-1], -1)


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
