"""Quantisers of ggml with an importance matrix, in numpy, for what the package gguf does not write.

After quantize_row_*_impl of ggml-quants.c: scales are searched for by weighted least squares, so
that an element of little importance may be cut off or be some steps away. The weight of an element
is its importance times sqrt(mean square of its row or block + its square).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_SUPER = 256


def draw_importance(columns: int, orders: float, seed: int) -> Array:
    """Return the importance of each column: so many orders of magnitude from least to greatest."""
    drawn = np.random.default_rng(seed).uniform(0, orders, columns)
    return np.asarray(10.0**-drawn, dtype=np.float32)


def quantise_by_importance(kind: str, values: Array, importance: Array) -> NDArray[np.uint8]:
    """Return blocks of a type of ggml.

    Args:
        kind: of KINDS.
        values: (rows, columns) of whole blocks.
        importance: of each column.
    """
    width = {"Q4_0": 32, "Q5_0": 32, "Q4_1": 32}.get(kind, _SUPER)
    blocks = values.reshape(-1, width).astype(np.float32)
    given = np.broadcast_to(importance, values.shape).reshape(-1, width)
    of_row = np.mean(values.astype(np.float32) ** 2, axis=1, keepdims=True)
    mean = np.repeat(of_row, values.shape[1] // width, axis=0)
    raw = KINDS[kind](blocks, given, mean)
    return np.ascontiguousarray(raw).view(np.uint8).reshape(len(values), -1)


def _nearest(values: Array) -> Array:
    return np.rint(values)


def _divide(one: Array, other: Array) -> Array:
    return np.where(other != 0, one / np.where(other == 0, 1, other), 0.0)


def search_signed(blocks: Array, weights: Array, half: int) -> tuple[Array, Array]:
    """Return the scale of each block and its codes, -half to half - 1 (make_qx_quants)."""
    at = np.abs(blocks).argmax(axis=1)[:, None]
    most = np.take_along_axis(blocks, at, axis=1)
    best = np.full(len(blocks), -1.0)
    scale, codes = np.zeros(len(blocks)), np.zeros_like(blocks)
    for step in sorted(range(-9, 10), key=lambda one: one != 0):
        levels = np.clip(_nearest(_divide(-(half + 0.1 * step) * blocks, most)), -half, half - 1)
        product = (weights * blocks * levels).sum(axis=1, dtype=np.float64)
        squares = (weights * levels * levels).sum(axis=1, dtype=np.float64)
        gain = np.where(squares > 0, _divide(product**2, squares), -1.0)
        better = gain > best
        best[better], codes[better] = gain[better], levels[better]
        scale[better] = _divide(product, squares)[better]
    return scale.astype(np.float32), codes


def search_offset(
    blocks: Array, weights: Array, top: int, least: float, step: float, count: int
) -> tuple[Array, Array, Array]:
    """Return scale, minimum (not below zero) and codes 0 to ``top`` (make_qkx3_quants).

    Steps are tried from the minimum that was the best until then.
    """
    most, low = blocks.max(axis=1, keepdims=True), np.minimum(blocks.min(axis=1, keepdims=True), 0)
    span = most - low
    whole = weights.sum(axis=1, dtype=np.float64)
    sum_x = (weights * blocks).sum(axis=1, dtype=np.float64)
    scale, minimum = (span / top)[:, 0].astype(np.float64), low[:, 0].astype(np.float64)
    codes = np.clip(_nearest(_divide((blocks - low) * top, span)), 0, top)
    fitted = scale[:, None] * codes + minimum[:, None]
    best = (weights * (fitted - blocks) ** 2).sum(axis=1)
    for number in range(count + 1):
        levels = np.clip(
            _nearest(_divide((blocks - low) * (least + step * number + top), span)), 0, top
        )
        sum_l, sum_l2, sum_xl = (
            (weights * one).sum(axis=1, dtype=np.float64)
            for one in (levels, levels * levels, levels * blocks)
        )
        divisor = whole * sum_l2 - sum_l**2
        this = _divide(whole * sum_xl - sum_x * sum_l, divisor)
        offset = _divide(sum_l2 * sum_x - sum_l * sum_xl, divisor)
        above = offset > 0
        this, offset = np.where(above, _divide(sum_xl, sum_l2), this), np.where(above, 0, offset)
        off = (weights * (this[:, None] * levels + offset[:, None] - blocks) ** 2).sum(axis=1)
        better = (divisor > 0) & (off < best)
        best[better], scale[better], minimum[better] = off[better], this[better], offset[better]
        codes[better] = levels[better]
        low[better, 0] = offset[better]
        span = most - low
    return scale.astype(np.float32), -minimum.astype(np.float32), codes


def search_positive(values: Array, weights: Array, top: int) -> tuple[Array, Array]:
    """Return a scale and codes 0 to ``top`` of numbers not below zero (make_qp_quants)."""
    most = values.max(axis=1, keepdims=True)
    inverse = _divide(np.full_like(most, top), most)
    best = np.full(len(values), np.inf)
    for step in sorted(range(-4, 5), key=lambda one: one != 0):
        tried = _divide(np.full_like(most, top + 0.1 * step), most)
        levels = np.minimum(_nearest(tried * values), top)
        off = (weights * (values - _divide(levels, tried)) ** 2).sum(axis=1)
        better = off < best
        best[better], inverse[better] = off[better], tried[better]
    codes = np.clip(_nearest(inverse * values), 0, top)
    product = (weights * values * codes).sum(axis=1, dtype=np.float64)
    squares = (weights * codes * codes).sum(axis=1, dtype=np.float64)
    for _ in range(5):
        for at in range(values.shape[1]):
            weight, value, code = (one[:, at] for one in (weights, values, codes))
            left = product - weight * value * code
            left2 = squares - weight * code * code
            new = np.clip(_nearest(_divide(value * left2, left)), 0, top)
            product2 = left + weight * value * new
            squares2 = left2 + weight * new * new
            better = (left > 0) & (left2 > 0) & (new != code)
            better &= product2**2 * squares > product**2 * squares2
            codes[better, at] = new[better]
            product = np.where(better, product2, product)
            squares = np.where(better, squares2, squares)
    return _divide(product, squares).astype(np.float32), codes


def _half(values: Array) -> Array:
    found: Array = values.astype(np.float16).astype(np.float32)
    return found


def _bytes(halves: Array) -> Array:
    return np.ascontiguousarray(halves.astype("<f2")[:, None]).view(np.uint8)


def _q4_0(blocks: Array, importance: Array, mean: Array) -> Array:
    scale, codes = search_signed(blocks, importance * np.sqrt(mean + blocks**2), 8)
    levels = (codes + 8).astype(np.uint8)
    return np.concatenate([_bytes(scale), levels[:, :16] | (levels[:, 16:] << 4)], axis=1)


def _q5_0(blocks: Array, importance: Array, mean: Array) -> Array:
    scale, codes = search_signed(blocks, importance * np.sqrt(mean + blocks**2), 16)
    levels = (codes + 16).astype(np.uint8)
    high = np.packbits(levels >> 4, axis=1, bitorder="little")
    low = levels & 15
    return np.concatenate([_bytes(scale), high, low[:, :16] | (low[:, 16:] << 4)], axis=1)


def _q4_1(blocks: Array, importance: Array, mean: Array) -> Array:
    weights = importance * np.sqrt(mean + blocks**2)
    scale, minimum, codes = search_offset(blocks, weights, 15, -0.9, 0.05, 36)
    levels = codes.astype(np.uint8)
    packed = levels[:, :16] | (levels[:, 16:] << 4)
    return np.concatenate([_bytes(scale), _bytes(-minimum), packed], axis=1)


def _sub_blocks(
    blocks: Array, importance: Array, width: int, times: int
) -> tuple[Array, Array, Array]:
    """Return sub-blocks, their weights and the sums of these."""
    mean = times * np.mean(blocks**2, axis=1, keepdims=True)
    weights = importance * np.sqrt(mean + blocks**2)
    sums = weights.reshape(len(blocks), -1, width).sum(axis=2)
    return blocks.reshape(-1, width), weights.reshape(-1, width), sums


def _with_minima(
    blocks: Array, importance: Array, *, width: int, top: int, most: int, times: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return both scales of each block, whole-number ones of its parts, and codes."""
    parts, weights, sums = _sub_blocks(blocks, importance, width, times)
    scale, minimum, _ = search_offset(parts, weights, top, -0.9, 0.05, 36)
    wide, sizes = search_positive(scale.reshape(len(blocks), -1), sums, most)
    deep, offsets = search_positive(minimum.reshape(len(blocks), -1), sums, most)
    step = (_half(wide)[:, None] * sizes).reshape(-1, 1)
    offset = (_half(deep)[:, None] * offsets).reshape(-1, 1)
    codes = np.clip(_nearest(_divide(parts + offset, step)), 0, top)
    return wide, deep, sizes, offsets, codes.reshape(blocks.shape).astype(np.uint8)


def _q2_k(blocks: Array, importance: Array, _: Array) -> Array:
    wide, deep, sizes, offsets, codes = _with_minima(
        blocks, importance, width=16, top=3, most=15, times=1
    )
    packed = sizes.astype(np.uint8) | (offsets.astype(np.uint8) << 4)
    return np.concatenate([packed, _fours(codes), _bytes(wide), _bytes(deep)], axis=1)


def _fours(codes: Array) -> Array:
    """Pack two bits of each of 256 codes: four runs of 32 lie in one run of bytes."""
    runs = codes.reshape(len(codes), 2, 4, 32)
    packed = runs[:, :, 0] | (runs[:, :, 1] << 2) | (runs[:, :, 2] << 4) | (runs[:, :, 3] << 6)
    return packed.reshape(len(codes), 64)


def _q4_k(blocks: Array, importance: Array, _: Array) -> Array:
    wide, deep, sizes, offsets, codes = _with_minima(
        blocks, importance, width=32, top=15, most=63, times=2
    )
    size, offset = sizes.astype(np.uint8), offsets.astype(np.uint8)
    packed = np.concatenate(
        [
            (size[:, :4] & 63) | ((size[:, 4:] >> 4) << 6),
            (offset[:, :4] & 63) | ((offset[:, 4:] >> 4) << 6),
            (size[:, 4:] & 15) | ((offset[:, 4:] & 15) << 4),
        ],
        axis=1,
    )
    pairs = codes.reshape(len(blocks), 4, 2, 32)
    halved = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(len(blocks), 128)
    return np.concatenate([_bytes(wide), _bytes(deep), packed, halved], axis=1)


def _q3_k(blocks: Array, importance: Array, _: Array) -> Array:
    parts, weights, sums = _sub_blocks(blocks, importance, 16, 2)
    scale, _ = search_signed(parts, weights, 4)
    wide, sizes = search_signed(scale.reshape(len(blocks), 16), sums, 32)
    step = (_half(wide)[:, None] * sizes).reshape(-1, 1)
    codes = np.where(step == 0, 0, np.clip(_nearest(_divide(parts, step)), -4, 3))
    levels = (codes.reshape(len(blocks), 8, 32) + 4).astype(np.uint8)
    high = np.zeros((len(blocks), 32), dtype=np.uint8)
    for at in range(8):
        high |= (levels[:, at] >> 2) << at
    size = (sizes + 32).astype(np.uint8)
    low = (size[:, :8] & 15) | ((size[:, 8:] & 15) << 4)
    tops = (size >> 4).reshape(len(blocks), 4, 4)
    mixed = tops[:, 0] | (tops[:, 1] << 2) | (tops[:, 2] << 4) | (tops[:, 3] << 6)
    low_bits = _fours((levels & 3).reshape(len(blocks), _SUPER))
    return np.concatenate([high, low_bits, low, mixed, _bytes(wide)], axis=1)


_KEPT = 5  # the greatest of 1, 3, 5: a level of iq2_xxs


def _iq2_xxs(blocks: Array, importance: Array, _: Array) -> Array:
    parts, weights, _sums = _sub_blocks(blocks, importance, 32, 1)
    sizes, signs = _even_signs(parts, weights)
    scale, _ = search_positive(np.maximum(sizes, 0), weights, 4)
    grid = _codebook()
    best = np.zeros(len(parts))
    found = np.zeros(len(parts))
    places = np.zeros((len(parts), 4), dtype=np.intp)
    for step in range(-6, 7):
        inverse = _divide(np.full_like(scale, _KEPT + 0.1 * step), scale * 3)
        tried = _nearest_vectors(sizes, weights, inverse, grid)
        levels = grid[tried].reshape(len(parts), 32)
        product = (weights * sizes * levels).sum(axis=1, dtype=np.float64)
        squares = (weights * levels * levels).sum(axis=1, dtype=np.float64)
        gain = _divide(product**2, squares)
        better = (product > 0) & (gain > best) & (scale > 0)
        best[better], found[better] = gain[better], _divide(product, squares)[better]
        places[better] = tried[better]
    scales = found.reshape(len(blocks), 8)
    wide = scales.max(axis=1) / 31
    codes = np.clip(_nearest(0.5 * (_divide(scales, wide[:, None]) - 1)), 0, 15).astype(np.uint32)
    packed = np.zeros((len(blocks), 8, 2), dtype=np.uint32)
    places[found == 0] = 0
    places = places.reshape(len(blocks), 8, 4)
    seven = signs.reshape(len(blocks), 8, 4)
    for at in range(4):
        packed[:, :, 0] |= places[:, :, at].astype(np.uint32) << np.uint32(8 * at)
        packed[:, :, 1] |= seven[:, :, at].astype(np.uint32) << np.uint32(7 * at)
    packed[:, :, 1] |= codes << np.uint32(28)
    raw = np.ascontiguousarray(packed.reshape(len(blocks), 16)).view(np.uint8)
    return np.concatenate([_bytes(wide), raw], axis=1)


def _even_signs(parts: Array, weights: Array) -> tuple[Array, Array]:
    """Return sizes and seven bits of signs of each 8; one that would make them odd is turned."""
    eights, weight = parts.reshape(-1, 8), weights.reshape(-1, 8)
    negative = eights < 0
    odd = negative.sum(axis=1) % 2 == 1
    least = (weight * eights**2).argmin(axis=1)
    sizes = np.abs(eights)
    at = np.flatnonzero(odd)
    sizes[at, least[at]] *= -1
    negative[at, least[at]] ^= True
    bits = (negative[:, :7] << np.arange(7)).sum(axis=1)
    return sizes.reshape(parts.shape), bits.reshape(-1, 4)


def _codebook() -> Array:
    """The 256 vectors of iq2_xxs in levels of 1, 3 and 5 (8, 25 and 43 as they are stored)."""
    kind = gguf.quants.IQ2_XXS
    kind.init_grid()
    return np.asarray(np.rint(kind.grid.reshape(256, 8) / 8.6), dtype=np.float32)


def _nearest_vectors(sizes: Array, weights: Array, inverse: Array, grid: Array) -> Array:
    wanted = (sizes * inverse[:, None]).reshape(-1, 8)
    root = weights.reshape(-1, 8)
    found = np.empty(len(wanted), dtype=np.intp)
    for start in range(0, len(wanted), 4096):
        here = slice(start, start + 4096)
        off = (root[here] @ (grid * grid).T) - 2 * (root[here] * wanted[here]) @ grid.T
        found[here] = off.argmin(axis=1)
    return found.reshape(-1, 4)


KINDS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q4_1": _q4_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "IQ2_XXS": _iq2_xxs,
}
