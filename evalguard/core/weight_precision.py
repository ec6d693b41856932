"""How a candidate's weights were rounded: classes of precision, told by the base's weights.

A converted weight is the base's weight, rounded by a rule. Each rule is applied to the base's
weight here; the rule whose result is the candidate's weight, or is as far from the base's as that
is, is its class. Most weights of a model have one class; one that has another stands out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from evalguard.core.grid import find_grid_fault
from evalguard.core.precision_vote import (
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
        shifted: whether it is shifted by whole steps of its grid, or its groups have the scales of
            others, which no rounding does.
    """

    name: str
    error: float
    exact: bool
    fitting: tuple[str, ...]
    shifted: bool = False


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
    if base.ndim > 1 and find_grid_fault(base, candidate) is not None:
        return WeightClass(OTHER, error, exact=False, fitting=(OTHER,), shifted=True)
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
        match = re.match(r"int(\d+)", name)
        return match is None or int(match[1]) >= self.bits


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
