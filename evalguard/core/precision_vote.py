"""Which precision a tensor looks rounded to: a vote over ways of rounding the other side.

Each way rounds the exact side itself. The tensor was rounded that way if its error goes where that
rounding's error goes (their correlation). An error of the same size is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Family = Literal["float32", "fp16/TF32", "bf16", "fp8", "int8", "int6", "int5", "int4", "int3"]
# From the finest to the coarsest. int6, int5 and int3 are what ggml has between the usual ones.
FAMILIES: tuple[Family, ...] = (
    "float32", "fp16/TF32", "bf16", "int8", "fp8", "int6", "int5", "int4", "int3",
)  # fmt: skip
# An error that is a rounding's own has a correlation of 1 with it. That of another quantiser of the
# same grid that does not round to nearest (GPTQ) has 0.5 to 0.8, that of another grid less than 0.3
# (tests/core/test_precision_vote.py).
_SAME_ROUNDING = 0.85
_CERTAIN = 0.995  # no other way need be tried
_GROUPS = (32, 64, 128)
_MOST_LOST = 0.7  # of the norm: a rounding to three levels of normal numbers leaves less
_NF4 = np.array(  # quantiles of a normal distribution, as QLoRA has them (arXiv:2305.14314, E)
    [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
     0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0],
    dtype=np.float32,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """A way of rounding: its family, and its details as people say them."""

    family: Family
    detail: str
    round_values: Callable[[Array], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionVote:
    """What a tensor looks rounded to.

    Attributes:
        family: the class of precision.
        detail: how: "groups of 32"; "" of float32.
        way: the rounding; None of float32.
        rounded: the side that is the rounded one.
        correlation: of its error with that of the rounding.
        ratio: norm of its error over that of the rounding.
    """

    family: Family
    detail: str = ""
    way: Rounding | None = None
    rounded: Literal["base", "candidate"] = "candidate"
    correlation: float
    ratio: float


BFLOAT16_BITS = 7  # of explicit mantissa; TF32 and float16 have 10


def round_mantissa(values: Array, bits: int) -> Array:
    """Round float32 to ``bits`` explicit mantissa bits, to nearest, ties to even; NaN stays NaN."""
    drop = 23 - bits
    plain = np.ascontiguousarray(values, dtype=np.float32)
    raw = plain.view(np.uint32)
    odd = (raw >> np.uint32(drop)) & np.uint32(1)
    half = np.uint32((1 << (drop - 1)) - 1)
    rounded: Array = ((raw + half + odd) >> np.uint32(drop) << np.uint32(drop)).view(np.float32)
    return np.where(np.isnan(plain), plain, rounded)


def round_float16(values: Array) -> Array:
    """Round to float16, its range and its subnormal numbers included."""
    with np.errstate(over="ignore"):
        rounded: Array = values.astype(np.float16).astype(np.float32)
    return rounded


def round_float8(values: Array, *, mantissa: int = 3, largest: float = 448.0) -> Array:
    """Round to float8 (e4m3 as given; e5m2 has 2 bits and 57344), larger values clipped."""
    lowest = {3: -6, 2: -14}[mantissa]
    clipped = np.clip(values.astype(np.float32), -largest, largest)
    exponent = np.maximum(np.frexp(clipped)[1] - 1, lowest)
    step = np.ldexp(np.float32(1), exponent - mantissa).astype(np.float32)
    rounded: Array = (np.rint(clipped / step) * step).astype(np.float32)
    return rounded


def round_integer(values: Array, bits: int, *, group: int = 0, symmetric: bool = True) -> Array:
    """Round rows to an integer grid of 2**bits levels.

    Args:
        values: (rows, columns).
        group: columns that share a scale; 0: the whole row, -1: the whole tensor.
        symmetric: levels around zero; else from the smallest to the largest value, with a whole
            zero point.
    """
    blocks = _blocks(values, group)
    if symmetric:
        top = 2 ** (bits - 1) - 1
        scale = _nonzero(np.abs(blocks).max(axis=1, keepdims=True) / np.float32(top))
        rounded = np.clip(np.rint(blocks / scale), -top - 1, top) * scale
    else:
        low = np.minimum(blocks.min(axis=1, keepdims=True), 0)
        high = np.maximum(blocks.max(axis=1, keepdims=True), 0)
        scale = _nonzero((high - low) / np.float32(2**bits - 1))
        zero = np.rint(-low / scale)
        rounded = (np.clip(np.rint(blocks / scale) + zero, 0, 2**bits - 1) - zero) * scale
    return rounded.reshape(values.shape).astype(np.float32)


def _round_ggml(values: Array, bits: int) -> Array:
    """Round as ggml's q4_0 and q5_0 do: the largest of 32 elements is the lowest level."""
    blocks = _blocks(values, 32)
    at = np.abs(blocks).argmax(axis=1)[:, None]
    half = 2 ** (bits - 1)
    scale = _nonzero(np.take_along_axis(blocks, at, axis=1) / np.float32(-half))
    scale = scale.astype(np.float16).astype(np.float32)
    rounded = np.clip(np.floor(blocks / _nonzero(scale) + 0.5), -half, half - 1) * scale
    return rounded.reshape(values.shape).astype(np.float32)


def _round_nf4(values: Array) -> Array:
    blocks = _blocks(values, 64)
    scale = _nonzero(np.abs(blocks).max(axis=1, keepdims=True))
    places = np.searchsorted((_NF4[1:] + _NF4[:-1]) / 2, blocks / scale)
    return (_NF4[places] * scale).reshape(values.shape).astype(np.float32)


def _round_float8_scaled(values: Array, group: int) -> Array:
    blocks = _blocks(values, group)
    scale = _nonzero(np.abs(blocks).max(axis=1, keepdims=True) / np.float32(448))
    return (round_float8(blocks / scale) * scale).reshape(values.shape).astype(np.float32)


def _blocks(values: Array, group: int) -> Array:
    width = {0: values.shape[1], -1: values.size}.get(group, group)
    return values.reshape(-1, width)


def _nonzero(scale: Array) -> Array:
    return np.where(scale == 0, np.float32(1), scale).astype(np.float32)


def list_roundings(columns: int) -> Iterator[Rounding]:
    """Yield every way of rounding that is looked for in a tensor of so many columns."""
    yield Rounding(family="fp16/TF32", detail="float16", round_values=round_float16)
    yield Rounding(family="fp16/TF32", detail="TF32", round_values=partial(round_mantissa, bits=10))
    yield Rounding(
        family="bf16", detail="bfloat16", round_values=partial(round_mantissa, bits=BFLOAT16_BITS)
    )
    yield Rounding(family="fp8", detail="e4m3", round_values=round_float8)
    yield Rounding(
        family="fp8",
        detail="e5m2",
        round_values=partial(round_float8, mantissa=2, largest=57344.0),
    )
    fitting = [group for group in _GROUPS if columns % group == 0]
    whole: list[tuple[int, str]] = [(-1, "per tensor"), (0, "per row")]
    for group, words in whole:
        yield Rounding(
            family="fp8",
            detail=f"e4m3 {words}",
            round_values=partial(_round_float8_scaled, group=group),
        )
    if 64 in fitting:
        yield Rounding(family="int4", detail="nf4, groups of 64", round_values=_round_nf4)
    ggml: list[tuple[int, Family]] = [(4, "int4"), (5, "int5")]
    for bits, family in ggml if 32 in fitting else []:
        yield Rounding(
            family=family,
            detail=f"q{bits}_0",
            round_values=partial(_round_ggml, bits=bits),
        )
    grids: list[tuple[int, Family]] = [(8, "int8"), (6, "int6"), (4, "int4"), (3, "int3")]
    for bits, family in grids:
        for group, words in [*whole, *((size, f"groups of {size}") for size in fitting)]:
            for symmetric in (True, False):
                yield Rounding(
                    family=family,
                    detail=words + ("" if symmetric else ", asymmetric"),
                    round_values=partial(
                        round_integer, bits=bits, group=group, symmetric=symmetric
                    ),
                )


def vote_precision(base: Array, candidate: Array) -> PrecisionVote | None:
    """Say to which precision one of two tensors looks rounded; None: to none of them.

    Args:
        base, candidate: of one shape; whole rows of a matrix (a few will do), finite.

    Returns:
        None also where the two are equal, or their difference is no rounding.
    """
    here, there = (_as_rows(matrix) for matrix in (base, candidate))
    error = _norm(there - here)
    size = _norm(here)
    if error == 0.0 or size == 0.0 or not math.isfinite(error):
        return None
    if error < 4 * 2.0**-24 * size:
        return PrecisionVote(family="float32", correlation=0.0, ratio=error / (2.0**-24 * size))
    votes: list[PrecisionVote] = []
    for vote in chain(_votes(here, there, "candidate"), _votes(there, here, "base")):
        if vote.correlation > _CERTAIN and 0.9 < vote.ratio < 1.1:
            return vote
        votes.append(vote)
    same = max(votes, key=lambda vote: vote.correlation, default=None)
    if same is not None and same.correlation > _SAME_ROUNDING and 0.5 < same.ratio < 2:
        return same
    return None


def _votes(
    exact: Array, rounded: Array, side: Literal["base", "candidate"]
) -> Iterator[PrecisionVote]:
    error = rounded - exact
    size = _norm(error)
    for way in list_roundings(exact.shape[1]):
        own = way.round_values(exact) - exact
        own_size = _norm(own)
        if own_size == 0.0 or not math.isfinite(own_size):
            continue
        correlation = float(np.vdot(own.ravel(), error.ravel())) / (own_size * size)
        # what is rounded to nearly nothing is like its own error, whatever it is compared with
        if own_size > _MOST_LOST * _norm(exact) and correlation <= _CERTAIN:
            continue
        yield PrecisionVote(
            family=way.family,
            detail=way.detail,
            way=way,
            rounded=side,
            correlation=correlation,
            ratio=size / own_size,
        )


def _as_rows(values: Array) -> Array:
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    return np.ascontiguousarray(rows, dtype=np.float32)


def _norm(values: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(values.ravel()))
