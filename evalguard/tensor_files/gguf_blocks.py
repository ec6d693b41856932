"""Numbers of ggml's blocks, decoded many blocks at a time.

The formulas are those of the package gguf (gguf.quants, dequantize_blocks of each type; from
ggml-quants.c), to the last bit: a code, or a vector of a codebook, times the scale of its
sub-block, less a minimum. gguf decodes 16 blocks at a time, with an array of all shifts; here the
same bits of all blocks are taken at once, eight codes to a word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moved_codes import CodeField, CutCodes

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Decoder = Callable[[Bytes], Array]
_PAIRS = (0, 4)  # shifts of two codes in a byte, and so on
_FOURS = (0, 2, 4, 6)
_EIGHTS = tuple(range(8))


def block_decoder(kind: str) -> Decoder | None:
    """Return what gives the numbers, float32 and flat, of whole blocks of a type by its name
    ("q4_k"); None of a type that only gguf itself decodes.

    The bytes have to lie one after the other.
    """
    return _DECODERS.get(kind)


# Of types whose codes are cut into fields: where in a block each begins and ends, by its name in
# ggml-common.h, its lowest bit in a code and how many bits it has.
_FIELDS = {
    "q5_0": {"qs": (6, 22, 0, 4), "qh": (2, 6, 4, 1)},
    "q5_1": {"qs": (8, 24, 0, 4), "qh": (4, 8, 4, 1)},
    "q3_k": {"qs": (32, 96, 0, 2), "hmask": (0, 32, 2, 1)},
    "q5_k": {"qs": (48, 176, 0, 4), "qh": (16, 48, 4, 1)},
    "q6_k": {"ql": (0, 128, 0, 4), "qh": (128, 192, 4, 2)},
}


def cut_codes(kind: str, size: int, raw: Bytes) -> CutCodes | None:
    """Return the codes of whole blocks of ``size`` bytes as their fields hold them; None of a type
    that has one field, or vectors of a codebook."""
    fields = _FIELDS.get(kind)
    if fields is None:
        return None
    decode = _DECODERS[kind]

    def read(kept: str, ones: int = 0) -> Array:
        """What the blocks stand for with bits of one field alone: those that it has, or all."""
        blocks = raw.reshape(-1, size).copy()
        for name, (start, stop, *_) in fields.items():
            if name != kept or ones:
                blocks[:, start:stop] = ones if name == kept else 0
        return decode(blocks.reshape(-1))

    with np.errstate(all="ignore"):
        zero, (lowest, (_, _, _, most)) = read(""), next(iter(fields.items()))
        step = (read(lowest, 255) - zero) / np.float32(2**most - 1)
        held = {}
        for name, (_, _, first, bits) in fields.items():
            codes = np.where(step != 0, (read(name) - zero) / (step * np.float32(2**first)), 0)
            whole = np.nan_to_num(np.rint(codes), posinf=0, neginf=0).astype(np.uint8)
            held[name] = CodeField(lowest=first, bits=bits, held=whole)
    return CutCodes(zero=zero, step=step, fields=held)


def six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Return the eight scales and eight minima of q4_k and q5_k (get_scale_min_k4): (blocks, 8)
    each, of 12 bytes a block."""
    words = np.ascontiguousarray(packed).view(np.uint32)
    low, minima, mixed = words[:, 0], words[:, 1], words[:, 2]
    own, upper, lower = np.uint32(0x3F3F3F3F), np.uint32(0x30303030), np.uint32(0x0F0F0F0F)
    unpacked = np.empty((2, len(words), 2), dtype=np.uint32)
    unpacked[0, :, 0] = low & own
    unpacked[0, :, 1] = (mixed & lower) | ((low >> np.uint32(2)) & upper)
    unpacked[1, :, 0] = minima & own
    unpacked[1, :, 1] = ((mixed >> np.uint32(4)) & lower) | ((minima >> np.uint32(2)) & upper)
    codes = unpacked.view(np.uint8).astype(np.float32)
    return codes[0], codes[1]


def q3_k_scales(packed: Array) -> Array:
    """Return the sixteen scales of q3_k: (blocks, 16), of 12 bytes a block."""
    low, high = packed[:, :8], packed[:, 8:]
    codes = np.concatenate([low & 15, low >> 4], axis=1)
    codes |= np.concatenate([(high >> shift) & 3 for shift in _FOURS], axis=1) << 4
    signed: Array = codes.view(np.int8) - np.int8(32)
    return signed.astype(np.float32)


def iq4_xs_scales(packed: Array) -> Array:
    """Return the eight scales of iq4_xs: (blocks, 8), of 6 bytes a block."""
    high, low = np.ascontiguousarray(packed[:, :2]).view("<u2"), packed[:, 2:]
    upper = (high >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    codes = _four_bit_scales(low) | (upper.astype(np.uint8) << 4)
    signed: Array = codes.view(np.int8) - np.int8(32)
    return signed.astype(np.float32)


@lru_cache
def unsigned_e4m3() -> Array:
    """Return the values of unsigned E4M3 by their byte; 0 of 0x7f (ggml_ue4m3_to_fp32)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    values = np.where(
        exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    )
    return np.where((codes == 0) | (codes == 0x7F), 0.0, values).astype(np.float32)


class _Fields:
    """The bytes of blocks, taken field by field."""

    def __init__(self, raw: Bytes, size: int) -> None:
        self._raw, self._size = raw, size
        self.count = raw.size // size

    def take(self, start: int, stop: int, dtype: Any = np.uint8) -> Array:
        """Return bytes ``start`` to ``stop`` of every block: (blocks, numbers)."""
        numbers: Array = self._lay(start, stop).copy().view(dtype)
        return numbers.reshape(self.count, -1)

    def half(self, start: int) -> Array:
        """Return the float16 at ``start`` of every block as float32: (blocks, 1)."""
        return self.take(start, start + 2, "<f2").astype(np.float32)

    def _lay(self, start: int, stop: int) -> Array:
        width = stop - start
        kind = {2: "<u2", 4: "<u4", 8: "<u8"}.get(width, f"V{width}")
        return np.ndarray(
            (self.count,), kind, buffer=self._raw, offset=start, strides=(self._size,)
        )


def _spread(packed: Array, width: int, shifts: tuple[int, ...], bits: int, up: int = 0) -> Array:
    """Return codes that lie in the same bytes one over the other as one behind the other.

    Args:
        packed: bytes; ``width`` of them, at a shift, are neighbouring codes.
        up: by how many bits codes are moved up.
    """
    words = packed.reshape(-1).view(np.uint64)
    parts = words >> np.array(shifts, dtype=np.uint64)[:, None]
    parts &= np.uint64(((1 << bits) - 1) * 0x0101010101010101)
    if up:
        parts <<= np.uint64(up)
    laid = np.ascontiguousarray(parts.view(f"V{width}").T)  # a run of codes moves as one item
    return laid.reshape(-1).view(np.uint8)


def _scale(codes: Array, scales: Array, minima: Array | None = None, less: int = 0) -> Array:
    """Return codes, less a whole number, times their scales, less their minima: flat.

    Args:
        scales: one for as many codes as there are of one scale.
    """
    if less:
        codes = codes.view(np.int8)
        codes -= np.int8(less)
    return _scale_numbers(codes.astype(np.float32), scales, minima)


def _scale_numbers(values: Array, scales: Array, minima: Array | None = None) -> Array:
    laid = values.reshape(scales.size, -1)
    laid *= scales.reshape(-1, 1)
    if minima is not None:
        laid -= minima.reshape(-1, 1)
    return laid.reshape(-1)


def _q4_0(raw: Bytes) -> Array:
    blocks = _Fields(raw, 18)
    return _scale(_spread(blocks.take(2, 18), 16, _PAIRS, 4), blocks.half(0), less=8)


def _q4_1(raw: Bytes) -> Array:
    blocks = _Fields(raw, 20)
    scales = blocks.take(0, 4, "<f2").astype(np.float32)
    codes = _spread(blocks.take(4, 20), 16, _PAIRS, 4)
    return _scale(codes, scales[:, 0], -scales[:, 1])


def _fifth_bits(packed: Array) -> Array:
    """Return 16 for each bit that is set, from the lowest on."""
    bits = np.unpackbits(packed.reshape(-1), bitorder="little")
    words = bits.view(np.uint64)
    words <<= np.uint64(4)
    return bits


def _q5_0(raw: Bytes) -> Array:
    blocks = _Fields(raw, 22)
    codes = _spread(blocks.take(6, 22), 16, _PAIRS, 4)
    codes |= _fifth_bits(blocks.take(2, 6))
    return _scale(codes, blocks.half(0), less=16)


def _q5_1(raw: Bytes) -> Array:
    blocks = _Fields(raw, 24)
    scales = blocks.take(0, 4, "<f2").astype(np.float32)
    codes = _spread(blocks.take(8, 24), 16, _PAIRS, 4)
    codes |= _fifth_bits(blocks.take(4, 8))
    return _scale(codes, scales[:, 0], -scales[:, 1])


def _q8_0(raw: Bytes) -> Array:
    blocks = _Fields(raw, 34)
    return _scale(blocks.take(2, 34, np.int8), blocks.half(0))


def _q2_k(raw: Bytes) -> Array:
    blocks = _Fields(raw, 84)
    packed, scales = blocks.take(0, 16), blocks.take(80, 84, "<f2").astype(np.float32)
    steps = scales[:, :1] * (packed & 15).astype(np.float32)
    minima = scales[:, 1:] * (packed >> 4).astype(np.float32)
    return _scale(_spread(blocks.take(16, 80), 32, _FOURS, 2), steps, minima)


def _q3_k(raw: Bytes) -> Array:
    blocks = _Fields(raw, 110)
    steps = blocks.half(108) * q3_k_scales(blocks.take(96, 108))
    codes = _spread(blocks.take(32, 96), 32, _FOURS, 2)
    codes |= _spread(blocks.take(0, 32), 32, _EIGHTS, 1, up=2)
    return _scale(codes, steps, less=4)


def _with_six_bits(blocks: _Fields, codes: Array) -> Array:
    scales = blocks.take(0, 4, "<f2").astype(np.float32)
    steps, minima = six_bit_scales(blocks.take(4, 16))
    return _scale(codes, scales[:, :1] * steps, scales[:, 1:] * minima)


def _q4_k(raw: Bytes) -> Array:
    blocks = _Fields(raw, 144)
    return _with_six_bits(blocks, _spread(blocks.take(16, 144), 32, _PAIRS, 4))


def _q5_k(raw: Bytes) -> Array:
    blocks = _Fields(raw, 176)
    codes = _spread(blocks.take(48, 176), 32, _PAIRS, 4)
    codes |= _spread(blocks.take(16, 48), 32, _EIGHTS, 1, up=4)
    return _with_six_bits(blocks, codes)


def _q6_k(raw: Bytes) -> Array:
    blocks = _Fields(raw, 210)
    codes = _spread(blocks.take(0, 128), 64, _PAIRS, 4)
    codes |= _spread(blocks.take(128, 192), 32, _FOURS, 2, up=4)
    steps = blocks.half(208) * blocks.take(192, 208, np.int8).astype(np.float32)
    return _scale(codes, steps, less=32)


def _tq2_0(raw: Bytes) -> Array:
    blocks = _Fields(raw, 66)
    return _scale(_spread(blocks.take(0, 64), 32, _FOURS, 2), blocks.half(64), less=1)


# Levels of iq4_nl and iq4_xs, and twice those of E2M1, whose scales are halves.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@lru_cache
def _pairs_of(levels: tuple[int, ...]) -> Array:
    """Return two levels side by side, as one item, for each two codes of a byte each."""
    table = np.zeros((256, 256, 2), dtype=np.float32)
    table[: len(levels), : len(levels), 0] = np.array(levels, dtype=np.float32)[None, :]
    table[: len(levels), : len(levels), 1] = np.array(levels, dtype=np.float32)[:, None]
    return table.reshape(-1).view(np.float64)


def _look_up(levels: tuple[int, ...], codes: Array) -> Array:
    return np.take(_pairs_of(levels), codes.view("<u2"), mode="wrap").view(np.float32)


def _iq4_nl(raw: Bytes) -> Array:
    blocks = _Fields(raw, 18)
    codes = _spread(blocks.take(2, 18), 16, _PAIRS, 4)
    return _scale_numbers(_look_up(_IQ4, codes), blocks.half(0))


def _iq4_xs(raw: Bytes) -> Array:
    blocks = _Fields(raw, 136)
    codes = _spread(blocks.take(8, 136), 16, _PAIRS, 4)
    steps = blocks.half(0) * iq4_xs_scales(blocks.take(2, 8))
    return _scale_numbers(_look_up(_IQ4, codes), steps)


def _mxfp4(raw: Bytes) -> Array:
    blocks = _Fields(raw, 17)
    codes = _spread(blocks.take(1, 17), 16, _PAIRS, 4)
    return _scale_numbers(_look_up(_E2M1, codes), _half_powers()[blocks.take(0, 1)])


@lru_cache
def _half_powers() -> Array:
    """Return half of 2^(code - 127), by code (ggml_e8m0_to_fp32_half)."""
    powers: Array = np.exp2(np.arange(256) - 128.0)
    return powers.astype(np.float32)


def _nvfp4(raw: Bytes) -> Array:
    blocks = _Fields(raw, 36)
    codes = _spread(blocks.take(4, 36), 8, _PAIRS, 4)
    scales = unsigned_e4m3()[blocks.take(0, 4)] * np.float32(0.5)
    return _scale_numbers(_look_up(_E2M1, codes), scales)


@lru_cache
def _grid(name: str) -> Array:
    """Return the vectors of a type's codebook, whole numbers of a byte, as one item each."""
    from gguf import quants

    owner = getattr(quants, name)
    owner.init_grid()
    vectors: Array = owner.grid.reshape(owner.grid_shape)
    return vectors.astype(np.int8).view(f"<u{vectors.shape[1]}").reshape(-1)


@lru_cache
def _sign_masks() -> Array:
    """Return -1 for each bit of a byte that is set, else 0: eight of them as one item."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (-bits.view(np.int8)).view("<u8").reshape(-1)


@lru_cache
def _even_sign_masks() -> Array:
    """Return the same for the 7 bits of which the eighth follows."""
    from gguf import quants

    return _sign_masks()[np.frombuffer(quants.IQ2_XXS.ksigns, dtype=np.uint8)]


def _turn(vectors: Array, masks: Array, scales: Array) -> Array:
    """Return vectors with the signs of masks, times their scales."""
    signs = masks.reshape(-1)
    numbers = vectors.reshape(-1).view("<u8") ^ signs
    codes = numbers.view(np.int8)
    codes -= signs.view(np.int8)
    return _scale(codes, scales)


def _select(table: Array, index: Array) -> Array:
    return np.take(table, index.reshape(-1), mode="wrap")


def _four_bit_scales(packed: Array) -> Array:
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _iq2_xxs(raw: Bytes) -> Array:
    blocks = _Fields(raw, 66)
    words = blocks.take(2, 66, "<u4").reshape(blocks.count, 8, 2)
    tail = words[:, :, 1]
    steps = blocks.half(0) * (np.float32(0.5) + (tail >> 28).astype(np.float32)) * np.float32(0.25)
    vectors = _select(_grid("IQ2_XXS"), np.ascontiguousarray(words[:, :, 0]).view(np.uint8))
    return _turn(vectors, _signs_of(tail), steps)


def _signs_of(words: Array) -> Array:
    """Return masks of the lower 28 bits, 7 for eight numbers."""
    index = (words[:, :, None] >> np.array([0, 7, 14, 21], dtype=np.uint32)) & np.uint32(127)
    return _select(_even_sign_masks(), index)


def _iq2_xs(raw: Bytes) -> Array:
    blocks = _Fields(raw, 74)
    codes = blocks.take(2, 66, "<u2")
    sizes = np.float32(0.5) + _four_bit_scales(blocks.take(66, 74)).astype(np.float32)
    vectors = _select(_grid("IQ2_XS"), codes & np.uint16(511))
    masks = _select(_even_sign_masks(), codes >> np.uint16(9))
    return _turn(vectors, masks, blocks.half(0) * sizes * np.float32(0.25))


def _iq2_s(raw: Bytes) -> Array:
    blocks = _Fields(raw, 82)
    high = (blocks.take(66, 74)[:, :, None] >> np.array(_FOURS, dtype=np.uint8)) & np.uint8(3)
    index = blocks.take(2, 34).astype(np.uint16)
    index |= high.reshape(index.shape).astype(np.uint16) << np.uint16(8)
    sizes = np.float32(0.5) + _four_bit_scales(blocks.take(74, 82)).astype(np.float32)
    vectors = _select(_grid("IQ2_S"), index)
    masks = _select(_sign_masks(), blocks.take(34, 66))
    return _turn(vectors, masks, blocks.half(0) * sizes * np.float32(0.25))


def _iq3_xxs(raw: Bytes) -> Array:
    blocks = _Fields(raw, 98)
    tail = blocks.take(66, 98, "<u4")
    steps = blocks.half(0) * (np.float32(0.5) + (tail >> 28).astype(np.float32)) * np.float32(0.5)
    return _turn(_select(_grid("IQ3_XXS"), blocks.take(2, 66)), _signs_of(tail), steps)


def _iq3_s(raw: Bytes) -> Array:
    blocks = _Fields(raw, 110)
    index = blocks.take(2, 66).astype(np.uint16)
    high = np.unpackbits(blocks.take(66, 74), axis=1, bitorder="little")
    index |= high.astype(np.uint16) << np.uint16(8)
    sizes = (1 + 2 * _four_bit_scales(blocks.take(106, 110))).astype(np.float32)
    masks = _select(_sign_masks(), blocks.take(74, 106))
    return _turn(_select(_grid("IQ3_S"), index), masks, blocks.half(0) * sizes)


@lru_cache
def _shifted_grid() -> Array:
    """Return the vectors of iq1_s an eighth higher, and then an eighth lower."""
    vectors = _grid("IQ1_S").view(np.int8).astype(np.float32).reshape(-1, 8)
    shifts = np.array([0.125, -0.125], dtype=np.float32)[:, None, None]
    return (vectors + shifts).reshape(-1, 8).view("V32").reshape(-1)


def _iq1_s(raw: Bytes) -> Array:
    blocks = _Fields(raw, 50)
    high = blocks.take(34, 50, "<u2")
    steps = blocks.half(0) * (2 * ((high >> 12) & 7) + 1).astype(np.float32)
    upper = (high[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16)) & np.uint16(7)
    upper |= (high >> np.uint16(15) << np.uint16(3))[:, :, None]
    index = (upper << np.uint16(8)).reshape(blocks.count, 32) | blocks.take(2, 34)
    return _scale_numbers(_select(_shifted_grid(), index).view(np.float32), steps)


def _iq1_m(raw: Bytes) -> Array:
    blocks = _Fields(raw, 56)
    words = blocks.take(48, 56, "<u2")
    parts = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], dtype=np.uint16)
    scale = np.bitwise_or.reduce(parts, axis=1, keepdims=True).view("<f2").astype(np.float32)
    sizes = (words[:, :, None] >> np.array([0, 3, 6, 9], dtype=np.uint16)) & np.uint16(7)
    steps = scale * (2 * sizes.reshape(blocks.count, 16) + 1).astype(np.float32)
    upper = _four_bit_scales(blocks.take(32, 48)).astype(np.uint16)
    index = (upper << np.uint16(8)) | blocks.take(0, 32)
    return _scale_numbers(_select(_shifted_grid(), index).view(np.float32), steps)


_DECODERS: dict[str, Decoder] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0,
    "q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k,
    "iq1_s": _iq1_s, "iq1_m": _iq1_m, "iq2_xxs": _iq2_xxs, "iq2_xs": _iq2_xs, "iq2_s": _iq2_s,
    "iq3_xxs": _iq3_xxs, "iq3_s": _iq3_s, "iq4_nl": _iq4_nl, "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4, "nvfp4": _nvfp4, "tq2_0": _tq2_0,
}  # fmt: skip
