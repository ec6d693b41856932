"""How a candidate's weights were rounded: classes of precision, told by the base's weights.

A converted weight is the base's weight, rounded by a rule. Each rule is applied to the base's
weight here; the rule whose result is the candidate's weight, or is as far from the base's as that
is, is its class. Most weights of a model have one class; one that has another stands out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log, log2

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.precision import (
    BFLOAT16_BITS,
    round_float16,
    round_integer,
    round_mantissa,
)

Weights = NDArray[np.float32]

SAME = "float32"
OTHER = "other"
QUANTISED = "quantised"  # declared, by a rule that is none of CLASSES
# Dtypes of computation, and the spacing of their numbers above one.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

_CAST = ("float16", "bfloat16")
# A rule's error may be this much smaller or larger than the candidate's and still be its class:
# scales chosen by the mean square error or by calibration, zero points, other block scales.
_LEVEL = log(1.5)
_SAME_GRID = 0.3  # of the rule's own error: the candidate is the rule's result, but for its scales


def round_weights(weights: Weights, name: str) -> Weights:
    """Round by a class's rule, to float32; a tensor with one axis by no rule of blocks.

    Integers are symmetric around zero with the block's largest magnitude as the outermost level;
    channels are the first axis ([out, in] of a linear layer).
    """
    if name == SAME or weights.size == 0:
        return weights
    if name == "float16":
        return round_float16(weights)
    if name == "bfloat16":
        return round_mantissa(weights, BFLOAT16_BITS)
    if weights.ndim < 2:
        return weights
    return _RULES[name](weights)


@dataclass(frozen=True, slots=True)
class WeightClass:
    """What a weight's rounding looks like.

    Attributes:
        name: of CLASSES, or OTHER. error: relative L2 from the base's weight.
        exact: whether the class's rule gives just this weight.
        fitting: all classes whose rule has an error of this size; only the name, where exact.
    """

    name: str
    error: float
    exact: bool
    fitting: tuple[str, ...]


def classify_weight(base: Weights, candidate: Weights) -> WeightClass:
    """Say by which rule the candidate's weight was made from the base's of the same shape."""
    error = relative_error(base, candidate)
    for name in (SAME, *_CAST):
        if np.array_equal(round_weights(base, name), candidate, equal_nan=True):
            return WeightClass(name, error, exact=True, fitting=(name,))
    distances: dict[str, float] = {}
    if base.ndim > 1 and 0.0 < error < inf:
        for name in _RULES:
            rounded = round_weights(base, name)
            own = relative_error(base, rounded)
            if own and relative_error(rounded, candidate) <= _SAME_GRID * own:
                return WeightClass(name, error, exact=True, fitting=(name,))
            if own and abs(log(error / own)) < _LEVEL:
                distances[name] = abs(log(error / own))
    nearest = min(distances, key=lambda name: distances[name], default=OTHER)
    return WeightClass(nearest, error, exact=False, fitting=tuple(distances) or (OTHER,))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPrecision:
    """How a candidate's weights are rounded, as whoever made it says.

    Attributes:
        source: what says that they are quantised ("quantization_config (gptq)"); "": nothing does.
        bits: that a weight is said to have; 0: it does not say.
        dtypes: in which they are stored, or said to be, beside the one that they are loaded in.
    """

    source: str = ""
    bits: int = 0
    dtypes: frozenset[str] = frozenset()

    def allows(self, name: str) -> bool:
        """Whether weights of a class are what was declared: no coarser than that."""
        if name == SAME or name in self.dtypes:
            return True
        if name in EPSILON or not self.source:
            return False
        found = re.match(r"int(\d+)", name)
        return found is None or int(found[1]) >= self.bits


# Grids that weights lie on, told by the weights alone.


_GRID_ROWS = 256  # of a matrix are looked at
_LARGEST_GRID = 256  # levels: eight bits
_GROUPS = (32, 64, 128)
_ONE_SCALE = "one scale"
_ON_GRID = 0.02  # of a step: how far from a whole number of steps a level may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Levels that a matrix's values lie on: ``bits`` of them, and how scales are shared."""

    bits: int
    shared: str

    def __str__(self) -> str:
        bits = f"{self.bits} bit{'' if self.bits == 1 else 's'}"
        return (
            f"{bits} {self.shared}" if self.shared == "of mantissa" else f"{bits} ({self.shared})"
        )


def find_grid(weights: Weights) -> Grid | None:
    """Find the coarsest grid that a matrix's values lie on; None: on none of 8 bits or fewer.

    A block of values that holds far fewer distinct ones than it has elements was rounded to these;
    so were numbers of which none needs more than a few bits of mantissa.
    """
    if weights.ndim < 2 or not weights.size or not np.all(np.isfinite(weights)):
        return None
    rows = np.ascontiguousarray(weights.reshape(weights.shape[0], -1)[:_GRID_ROWS])
    found: list[Grid] = []
    for shared, blocks in _blocks_of(rows):
        levels, even = _count_levels(blocks)
        if levels:
            found.append(Grid(bits=max(ceil(log2(levels)), 1), shared=shared))
        if levels and even and shared == _ONE_SCALE:
            break  # its rows lie on that grid too, and may use less of it
    mantissa = _count_mantissa(rows)
    if mantissa < BFLOAT16_BITS:
        found.append(Grid(bits=max(mantissa, 1), shared="of mantissa"))
    return min(found, key=lambda grid: grid.bits, default=None)


def _blocks_of(rows: Weights) -> Iterator[tuple[str, Weights]]:
    yield _ONE_SCALE, rows.reshape(1, -1)
    yield "a scale for each row", rows
    yield "a scale for each column", np.ascontiguousarray(rows.T)
    for size in _GROUPS:
        if rows.shape[1] % size == 0 and rows.shape[1] > size:
            yield f"groups of {size}", rows.reshape(-1, size)


def _count_levels(blocks: Weights) -> tuple[int, bool]:
    """Count the levels of the finest block, 0 where one has too many for its size.

    Beside it whether the levels of all blocks are as far apart as their neighbours.
    """
    width = blocks.shape[1]
    ordered = np.sort(blocks, axis=1)
    steps = np.diff(ordered, axis=1)
    distinct = 1 + np.count_nonzero(steps, axis=1)
    most = int(distinct.max())
    if most > _LARGEST_GRID or most < 2 or 2 * most > width:
        return 0, False
    spans = ordered[:, -1] - ordered[:, 0]
    least = np.where(steps > 0.0, steps, np.inf).min(axis=1)
    with np.errstate(invalid="ignore"):
        counts = spans / least  # levels between the outermost ones, those that are not used too
        even = np.abs(steps / least[:, None] - np.rint(steps / least[:, None])) < _ON_GRID
    known = np.isfinite(counts) & np.all(even, axis=1) & (counts < _LARGEST_GRID)
    spanned = int(np.rint(counts[known]).max()) + 1 if known.any() else 0
    return max(most, spanned), bool(known.all())


def _count_mantissa(values: Weights) -> int:
    """Count the bits of mantissa that the values need."""
    raw = values.astype(np.float32).view(np.uint32) & np.uint32(0x7FFFFF)
    used = int(np.bitwise_or.reduce(raw, axis=None))
    return 23 if used & 1 else 23 - ((used & -used).bit_length() - 1) if used else 0


def vote_class(found: Iterable[WeightClass]) -> tuple[str, Mapping[str, int]]:
    """Give the class that fits most weights, and how many it or others are; SAME without any.

    Of two that fit as many, the one that made more weights exactly, or the plainer one.
    """
    weights = list(found)
    fitting = Counter(name for each in weights for name in each.fitting)
    exact = Counter(each.name for each in weights if each.exact)
    if not weights:
        return SAME, {}
    in_order = [name for name in (*CLASSES, OTHER) if name in fitting]
    winner = max(in_order, key=lambda name: (fitting[name], exact[name]))
    votes = Counter(winner if winner in each.fitting else each.name for each in weights)
    return winner, dict(votes)


def relative_error(base: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """L2 norm of the difference over the base's norm; inf where only the base is zero."""
    norm = float(np.linalg.norm(base.reshape(-1)))
    difference = float(np.linalg.norm((other - base).reshape(-1)))
    if norm == 0.0:
        return inf if difference else 0.0
    return difference / norm


def _by_groups(weights: Weights, *, bits: int, size: int) -> Weights:
    """Groups of so many elements run through the whole tensor, the last one filled up."""
    flat = weights.reshape(-1)
    filled = np.pad(flat, (0, -flat.size % size)).reshape(1, -1)
    return round_integer(filled, bits, group=size).reshape(-1)[: flat.size].reshape(weights.shape)


def _by_row(weights: Weights, *, bits: int) -> Weights:
    rows = weights.reshape(weights.shape[0], -1)
    return round_integer(rows, bits).reshape(weights.shape)


def _by_column(weights: Weights, *, bits: int) -> Weights:
    """As ``_by_row``, for weights that are stored as [in, out]."""
    turned = np.ascontiguousarray(np.moveaxis(weights, -1, 0))
    return np.ascontiguousarray(np.moveaxis(_by_row(turned, bits=bits), 0, -1))


def _by_tensor(weights: Weights, *, bits: int) -> Weights:
    return round_integer(weights.reshape(1, -1), bits).reshape(weights.shape)


_RULES: dict[str, Callable[[Weights], Weights]] = {
    "int8 per channel": partial(_by_row, bits=8),
    "int8 per column": partial(_by_column, bits=8),
    "int8 per tensor": partial(_by_tensor, bits=8),
    "int8 in groups of 32": partial(_by_groups, bits=8, size=32),
    "int4 in groups of 32": partial(_by_groups, bits=4, size=32),
    "int4 in groups of 128": partial(_by_groups, bits=4, size=128),
    "int4 per channel": partial(_by_row, bits=4),
}
CLASSES = (SAME, *_CAST, *_RULES)
