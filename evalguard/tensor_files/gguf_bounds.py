"""What the block types of ggml can do: their scales read, and with them the greatest error.

Layouts are those of ggml-common.h; ``gguf_blocks`` decodes the numbers, this file reads only the
scales. ggml rounds to nearest on the final scale of a block; the scales of K-quants' sub-blocks are
rounded to 4 or 6 bits before, which cuts off what is at the ends. An importance matrix moves scales
by weighted least squares (quantize_row_*_impl): that cuts off more, and in the types of one scale
for 32 elements, which keep the levels chosen before, it moves all of them (:func:`_is_searched`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import ANYTHING, CUT_OFF, SEARCHED, Bound, Cells, lost_by_float16
from evalguard.tensor_files.gguf_blocks import (
    iq4_xs_scales,
    q3_k_scales,
    six_bit_scales,
    unsigned_e4m3,
)

Array = NDArray[Any]
_HALF = 0.505
_SUPER = 256  # elements of a super-block
_FARTHEST = 1.5  # two unrelated blocks of one size are 2 apart, in squares, a negated one 4
_LOST = 1e-5  # what a float16 scale of a codebook may lose: all of so small a block
_SEARCHED = 1.5  # steps, where least squares may choose the scale after the rounding


def bound_blocks(
    kind: str, size: int, raw: NDArray[np.uint8], values: Array, exact: Array
) -> Bound:
    """Return the greatest error that a healthy quantiser to ``kind`` makes in each element.

    Args:
        size: bytes of a block.
        raw: blocks, and ``values`` their numbers, flat.
        exact: what was quantised; NaN where that is not known. Types that are vectors of a codebook
            have no bound without it: see :func:`_bound_vectors`.
    """
    cells = block_cells(kind, raw, size)
    if cells is None:
        return _bound_vectors(kind, values, exact)
    bound = cells.bound(values)
    if kind in _SEARCHED_LEVELS:
        ours, theirs = exact.reshape(-1, cells.width), values.reshape(-1, cells.width)
        beyond = np.abs(ours - theirs) > bound.allowed.reshape(ours.shape)
        asked = np.flatnonzero(beyond.any(axis=1))
        low, high = (edge.reshape(-1)[asked].astype(np.float64) for edge in (cells.low, cells.high))
        turned = np.signbit(_half_floats(raw.reshape(-1, size)[asked, :2]))[:, 0]
        searched = _is_searched(kind, ours[asked], theirs[asked], low, high, turned)
        bound.allowed.reshape(ours.shape)[asked[searched]] = SEARCHED
    return bound


# Levels of a type whose scale is searched for after them: how many, whether the greatest element is
# the lowest of them, and by how many of them the search tries other scales (make_qx_quants,
# make_qkx3_quants).
_SEARCHED_LEVELS = {
    "q4_0": (16, True),
    "q5_0": (32, True),
    "q4_1": (16, False),
    "q5_1": (32, False),
}
_TRIED = 0.95
_ROUNDED = 0.51
_NONE_LEFT = 0.02  # of a step: an element that chose the scale
# Of the scale that the greatest element asks for: one that alone counts asks for half of it or half
# as much again, and of two together the scale may be any smaller one.
_LEAST_SCALE, _MOST_SCALE = 0.1, 1.7
_SMALL_SCALE, _CHOSEN = 0.3, 0.1  # below it these two are there, within so much of a step


def _is_searched(
    kind: str, exact: Array, values: Array, low: Array, high: Array, turned: Array
) -> Array:
    """Say of which blocks the levels are those of a search, and the scale a weighted mean of what
    the elements ask for: then all that is off is of little importance.

    Args:
        exact, values: (blocks, 32). low, high: ends of the grids. turned: of a negative scale.
    """
    levels, centred = _SEARCHED_LEVELS[kind]
    top = levels - 1
    with np.errstate(all="ignore"):
        step = ((high - low) / top)[:, None]
        codes = np.rint((values - low[:, None]) / step)
        if centred:  # counted from the end at which the greatest element is
            codes = np.where(turned[:, None], top - codes, codes)
            own = np.abs(exact).max(axis=1, keepdims=True) / (levels / 2)
            own = np.where(turned[:, None], -own, own)
            wanted, zero = exact / own + levels / 2, levels / 2
            step = np.where(turned[:, None], -step, step)
            apart = np.abs(wanted - codes)
            room = 0.51 + np.abs(wanted - zero) * (_TRIED / (levels / 2))
            cut = ((codes == top) & (wanted > top)) | ((codes == 0) & (wanted < 0))
            searched: Array = ((apart <= room) | cut).all(axis=1)
        else:
            least = np.minimum(exact.min(axis=1, keepdims=True), 0)
            own = (exact.max(axis=1, keepdims=True) - least) / top
            zero = 0.0
            searched = _is_rounded_line(exact, codes, top)
        ratio = (step / own)[:, 0]
        # of any weights, some elements ask for more and some for less
        residual, none = exact - values, _NONE_LEFT * np.abs(step)
        if centred:
            residual *= np.sign(codes - zero) * np.sign(step)
            above, below = (residual > -none) & (codes != zero), (residual < none) & (codes != zero)
            balanced = above.any(axis=1) & below.any(axis=1)
        else:  # and do so at least twice in turn, from the lowest level up: there are two scales
            above, below = residual > -none, residual < none
            balanced = _lies_between(below, above, codes) | _lies_between(above, below, codes)
            chosen = (np.abs(residual) < _CHOSEN * np.abs(step)).sum(axis=1)
            balanced &= (ratio > _SMALL_SCALE) | (chosen >= 2)
        searched &= balanced
        searched &= (ratio > _LEAST_SCALE) & (ratio < _MOST_SCALE)
    return searched


def _is_rounded_line(exact: Array, codes: Array, top: int) -> Array:
    """Say of each block whether codes are some a x + b rounded to nearest and cut off at the ends.

    make_qkx3_quants tries steps around that of the range, and each from the minimum that was the
    best until then, which is none that is stored: a and b are any that give the greatest element
    about the highest level, and 0 none below the lowest. They are there if no two elements ask for
    more and for less of a than each other.
    """
    high, edge = exact.max(axis=1, keepdims=True), np.zeros((len(exact), 1))
    places = np.concatenate([exact, high, edge], axis=1).astype(np.float64)
    last = np.full_like(high, top, dtype=np.float64)
    least = np.where(codes <= 0, -np.inf, codes - _ROUNDED)
    most = np.where(codes >= top, np.inf, codes + _ROUNDED)
    least = np.concatenate([least, last - _TRIED, edge - _ROUNDED], axis=1)
    most = np.concatenate([most, last + _TRIED, np.full_like(edge, np.inf)], axis=1)
    apart = places[:, None, :] - places[:, :, None]
    room = most[:, None, :] - least[:, :, None]
    need = least[:, None, :] - most[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(apart > 0, room / apart, np.inf).min(axis=(1, 2))
        lower = np.where(apart > 0, need / apart, -np.inf).max(axis=(1, 2))
    equal = (np.where(apart == 0, need, -np.inf) <= 0).all(axis=(1, 2))
    rounded: Array = (lower <= upper) & equal
    return rounded


def _lies_between(inner: Array, outer: Array, codes: Array) -> Array:
    """Say of each block whether an element has a level between those of two others."""
    low = np.where(outer, codes, np.inf).min(axis=1, keepdims=True)
    high = np.where(outer, codes, -np.inf).max(axis=1, keepdims=True)
    between: Array = (inner & (codes > low) & (codes < high)).any(axis=1)
    return between


_SIGNED_VECTORS = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
_EIGHT = 8  # elements that share a vector, and of which one sign may be turned to make them even
_LARGEST = 3.0  # times the greatest of 32 elements: half of it is what a search may take more
_CUT = 1.5  # times the greatest of 32 elements that is kept: what is larger was cut off
_BESIDE = 0.1  # of the greatest of 256: the least scale of 32 is 1/31 of the greatest


def _bound_vectors(kind: str, values: Array, exact: Array) -> Bound:
    """Say which elements of vectors of a codebook are not as they should be.

    256 elements are damaged where nothing is left of them. Of types that keep every sign, 8 are
    where more than one sign is another, and 32 where they have grown far above their own greatest;
    of others 256, where they are off by more than their size.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        ours, theirs = exact.reshape(-1, _SUPER), values.reshape(-1, _SUPER)
        wrong = np.repeat(~theirs.any(axis=1), _SUPER)
        allowed = np.full(values.size, ANYTHING)
        if kind in _SIGNED_VECTORS:
            turned = (exact * values < 0) & (np.abs(exact) > _LOST / 10)
            odd = turned.reshape(-1, _EIGHT).sum(axis=1) > 1
            parts = np.abs(ours).reshape(-1, 8, 32).max(axis=2)
            most = _LARGEST * parts + _BESIDE * np.abs(ours).max(axis=1, keepdims=True)
            reached = np.abs(theirs).reshape(-1, 8, 32).max(axis=2)
            wrong |= np.repeat(odd, _EIGHT) | np.repeat((reached > most).reshape(-1), 32)
            cut = np.abs(exact) > np.repeat(_CUT * reached.reshape(-1), 32)
            allowed = np.where(cut, CUT_OFF, ANYTHING)
        else:
            off = ((theirs - ours) ** 2).sum(axis=1) > _FARTHEST * (ours**2).sum(axis=1)
            wrong |= np.repeat(off, _SUPER)
    allowed[wrong] = _LOST
    return Bound(allowed, np.zeros(values.size, dtype=np.int8))


WITH_MINIMA = frozenset({"q4_1", "q5_1", "q2_k", "q4_k", "q5_k"})  # the other types have none


def block_cells(kind: str, raw: NDArray[np.uint8], size: int) -> Cells | None:
    """Return the grids of blocks of ``size`` bytes; None of a type whose errors have no bound."""
    reader = _READERS.get(kind)
    return None if reader is None else reader(raw.reshape(-1, size))


def _half_floats(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _q8_0(blocks: Array) -> Cells:
    scale = np.abs(_half_floats(blocks[:, :2]))
    inner = _HALF * scale + 127 * lost_by_float16(scale)
    return Cells(width=32, low=-127 * scale, high=127 * scale, inner=inner, outer=0 * scale)


def _centred(blocks: Array, half: int) -> Cells:
    """q4_0 and q5_0: the greatest element is the lowest level, its opposite is cut off.

    Of a scale that float16 makes 0, the search may have chosen twice what that loses.
    """
    scale = np.abs(_half_floats(blocks[:, :2]))
    signed = _half_floats(blocks[:, :2])
    ends = -half * signed, (half - 1) * signed
    return Cells(
        width=32,
        low=np.minimum(*ends),
        high=np.maximum(*ends),
        inner=_SEARCHED * scale + half * lost_by_float16(scale) * (1 + (scale == 0)),
        outer=scale,
    )


def _offset(blocks: Array, levels: int) -> Cells:
    """q4_1 and q5_1: a scale and the least element."""
    scale, least = np.abs(_half_floats(blocks[:, :2])), _half_floats(blocks[:, 2:4])
    inner = _SEARCHED * scale + (levels - 1) * lost_by_float16(scale) + lost_by_float16(least)
    high = least + (levels - 1) * scale
    return Cells(width=32, low=least, high=high, inner=inner, outer=scale)


def _few(levels: int) -> float:
    """Return half a step, and more of grids of at most 8 levels, whose scales ggml searches for."""
    return 0.65 if levels <= 8 else _HALF


def _codes(scale: Array, codes: Array, most: int) -> Array:
    """Return whole-number scales, the greatest where float16 holds nothing of the scale of all."""
    return np.where(scale == 0, np.float32(most), codes)


def _with_minimum(
    scale: Array, minimum: Array, codes: tuple[Array, Array], levels: int, width: int
) -> Cells:
    """q2_k, q4_k, q5_k: whole-number scales and minima of sub-blocks."""
    step, low = np.abs(scale * codes[0]), -(minimum * codes[1])
    top = levels - 1
    most = 15 if levels == 4 else 63
    lost = top * _codes(scale, codes[0], most) * lost_by_float16(scale)
    lost = lost + _codes(minimum, codes[1], most) * lost_by_float16(minimum)
    cut = 0.75 * (top * np.abs(scale) + np.abs(minimum)) + 0 * step
    return Cells(
        width=width,
        low=low,
        high=low + top * step,
        inner=_few(levels) * step + lost,
        outer=4 * step + cut,
        single=(step == 0) & (scale != 0),
    )


def _q4_k(blocks: Array, levels: int = 16) -> Cells:
    scale, minimum = _half_floats(blocks[:, :2]), _half_floats(blocks[:, 2:4])
    return _with_minimum(scale, minimum, six_bit_scales(blocks[:, 4:16]), levels, 32)


def _q2_k(blocks: Array) -> Cells:
    packed = blocks[:, :16]
    codes = (packed & 15).astype(np.float32), (packed >> 4).astype(np.float32)
    return _with_minimum(
        _half_floats(blocks[:, 80:82]), _half_floats(blocks[:, 82:84]), codes, 4, 16
    )


def _signed_scales(scale: Array, codes: Array, half: int) -> Cells:
    """q3_k and q6_k: signed whole-number scales of 16 elements."""
    signed = scale * codes
    step = np.abs(signed)
    ends = -half * signed, (half - 1) * signed
    lost = half * _codes(scale, np.abs(codes), 32 if half == 4 else 128) * lost_by_float16(scale)
    return Cells(
        width=16,
        low=np.minimum(*ends),
        high=np.maximum(*ends),
        inner=_few(2 * half) * step + lost,
        outer=4 * step + 0.75 * half * np.abs(scale),
        single=(step == 0) & (scale != 0),
    )


def _q3_k(blocks: Array) -> Cells:
    codes = q3_k_scales(blocks[:, 96:108])
    return _signed_scales(_half_floats(blocks[:, 108:110]), codes, 4)


def _q6_k(blocks: Array) -> Cells:
    codes = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _signed_scales(_half_floats(blocks[:, 208:210]), codes, 32)


def _codebook(step: Array, cut: Array, single: Array | None = None) -> Cells:
    """iq4_nl and iq4_xs: 16 levels from -127 to 113, at most 24 apart."""
    size = np.abs(step)
    ends = -127 * step, 113 * step
    return Cells(
        width=32,
        low=np.minimum(*ends),
        high=np.maximum(*ends),
        inner=16 * size + 127 * lost_by_float16(step),
        outer=30 * size + cut,
        single=single,
    )


def _iq4_nl(blocks: Array) -> Cells:
    scale = _half_floats(blocks[:, :2])
    return _codebook(scale, 0 * scale)


def _iq4_xs(blocks: Array) -> Cells:
    scale = _half_floats(blocks[:, :2])
    codes = iq4_xs_scales(blocks[:, 2:8])
    # half a step of scales, each of which reaches 134 times as far (127 + 7: the least tried)
    cut = 0.505 * 134 * np.abs(scale) + 0 * codes
    return _codebook(scale * codes, cut, (codes == 0) & (scale != 0))


def _mxfp4(blocks: Array) -> Cells:
    """Powers of two as scales; e2m1 reaches 6, at most 2 apart (OCP microscaling formats, 1.0)."""
    step = np.exp2(blocks[:, :1].astype(np.float32) - 127)
    return Cells(width=32, low=-6 * step, high=6 * step, inner=1.01 * step, outer=1.1 * step)


def _nvfp4(blocks: Array) -> Cells:
    """Four scales of 8 bits of 16 elements each: unsigned e4m3, up to 448 and from 2**-10."""
    scale = unsigned_e4m3()[blocks[:, :4]]
    # a scale is rounded by up to a 16th, which is cut off; of the lowest six halves are lost
    lost = np.where((blocks[:, :4] & 0x78) == 0, np.float32(6 * 2**-10), 0).astype(np.float32)
    return Cells(
        width=16,
        low=-6 * scale,
        high=6 * scale,
        inner=1.01 * scale + lost,
        outer=0.45 * scale,
    )


def _ternary(blocks: Array) -> Cells:
    scale = np.abs(_half_floats(blocks[:, -2:]))
    inner = _HALF * scale + lost_by_float16(scale)
    return Cells(width=256, low=-scale, high=scale, inner=inner, outer=0 * scale)


_READERS: dict[str, Callable[[Array], Cells]] = {
    "q8_0": _q8_0,
    "q4_0": lambda blocks: _centred(blocks, 8),
    "q5_0": lambda blocks: _centred(blocks, 16),
    "q4_1": lambda blocks: _offset(blocks, 16),
    "q5_1": lambda blocks: _offset(blocks, 32),
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": lambda blocks: _q4_k(blocks, 32),
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "tq1_0": _ternary,
    "tq2_0": _ternary,
}
