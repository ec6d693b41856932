"""How a candidate's weights were rounded: classes of precision, told by the base's weights.

A converted weight is the base's weight, rounded by a rule. Each rule is applied to the base's
weight here; the rule whose result is the candidate's weight, or is as far from the base's as that
is, is its class. Most weights of a model have one class; one that has another stands out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

SAME = "float32"
OTHER = "other"
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
        with np.errstate(over="ignore"):
            return weights.astype(np.float16).astype(np.float32)
    if name == "bfloat16":
        return _to_bfloat16(weights)
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


def _to_bfloat16(weights: Weights) -> Weights:
    """Round to the nearest number with 8 bits of mantissa, to even where two are as near."""
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    values: Weights = rounded.view(np.float32)
    return np.where(np.isnan(weights), weights, values)


def _by_block(levels: int, block: Callable[[Weights], Weights]) -> Callable[[Weights], Weights]:
    """A rule: blocks of numbers, each in steps of its largest magnitude over ``levels``."""

    def round_blocks(weights: Weights) -> Weights:
        blocks = block(weights)
        step = np.max(np.abs(blocks), axis=-1, keepdims=True) / levels
        step = np.where(step == 0.0, np.float32(1.0), step).astype(np.float32)
        rounded = np.clip(np.rint(blocks / step), -levels, levels) * step
        flat = rounded.reshape(-1)[: weights.size]
        return np.ascontiguousarray(flat.reshape(weights.shape), dtype=np.float32)

    return round_blocks


def _rows(weights: Weights) -> Weights:
    return weights.reshape(weights.shape[0], -1)


def _whole(weights: Weights) -> Weights:
    return weights.reshape(1, -1)


def _groups(size: int) -> Callable[[Weights], Weights]:
    def cut(weights: Weights) -> Weights:
        flat = weights.reshape(-1)
        missing = -flat.size % size
        return np.pad(flat, (0, missing)).reshape(-1, size)

    return cut


def _columns(levels: int) -> Callable[[Weights], Weights]:
    """As ``_by_block`` by row, for weights that are stored as [in, out]."""
    rule = _by_block(levels, _rows)

    def round_columns(weights: Weights) -> Weights:
        turned = np.ascontiguousarray(np.moveaxis(weights, -1, 0))
        return np.ascontiguousarray(np.moveaxis(rule(turned), 0, -1))

    return round_columns


_RULES: dict[str, Callable[[Weights], Weights]] = {
    "int8 per channel": _by_block(127, _rows),
    "int8 per column": _columns(127),
    "int8 per tensor": _by_block(127, _whole),
    "int8 in groups of 32": _by_block(127, _groups(32)),
    "int4 in groups of 32": _by_block(7, _groups(32)),
    "int4 in groups of 128": _by_block(7, _groups(128)),
    "int4 per channel": _by_block(7, _rows),
}
CLASSES = (SAME, *_CAST, *_RULES)
