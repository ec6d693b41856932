"""The greatest error that a healthy quantiser makes in an element, known from the scales it stored.

Rounding to nearest is off by half a step, and at the ends of a grid by what was cut off. What is
beyond that is no rounding, however small a part of the tensor it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Before it was quantised a weight may have been cast to bfloat16 (half a unit in the last place is
# 2**-9 of it), and a library may have divided by the scale in bfloat16.
CAST = 2.0**-8
# Of 32 elements so many may be cut off: an importance matrix may let few of them choose the scale.
_RUN, _MOST_CUT = 32, 28
_MOST_LOST = 8  # where a grid is one number, for its scale was rounded to zero
_BOTH_WAYS = 2
# What an element may be off by where its format has no bound for it, where its whole block has
# another scale than its greatest element asks for, and where it was cut off: the last two an
# importance matrix explains, and they are no part of a tensor's noise.
ANYTHING = np.float32(1e30)
SEARCHED = np.finfo(np.float32).max
CUT_OFF = np.float32(np.inf)


@dataclass(frozen=True, slots=True)
class Bound:
    """The greatest healthy error of each element.

    Attributes:
        allowed: it, with what reference quantisers cut off at the ends of a grid.
        edge: 1 for an element on the highest level of its grid, -1 on the lowest, 2 on the only
            one, else 0: there an importance matrix lets elements be cut off by any amount.
    """

    allowed: Array
    edge: Array

    def move(self, how: Callable[[Array], Array], size: float = 1.0) -> Bound:
        """Return the same for elements that are laid out in another way, and scaled."""
        turned = how(self.edge)
        return Bound(how(self.allowed) * np.float32(abs(size)), -turned if size < 0 else turned)

    def join(self, exact: Bound | None) -> Bound:
        """Return the bound of two quantised sides; ``exact`` is that of the base."""
        if exact is None:
            return self
        edge = np.where(self.edge != 0, self.edge, -exact.edge)
        return Bound(self.allowed + exact.allowed, edge)

    def excuse(self, base: Array, candidate: Array) -> Array:
        """Return what each element may be off by, infinite for those of a block that were cut off
        outwards, where these are not too many."""
        with np.errstate(over="ignore", invalid="ignore"):
            difference = base - candidate
            beyond = np.abs(difference) > self.allowed
            if not beyond.any():
                return self.allowed
            lost = beyond & (np.abs(self.edge) == _BOTH_WAYS)
            outward = beyond & (difference * self.edge > 0) & ~lost
        if not (outward.any() or lost.any()):
            return self.allowed
        allowed = self.allowed.reshape(-1).copy()
        for cut, most in ((outward, _MOST_CUT), (lost, _MOST_LOST)):
            places = np.flatnonzero(cut)
            few = np.bincount(places // _RUN)[places // _RUN] <= most
            allowed[places[few]] = CUT_OFF
        return allowed.reshape(self.allowed.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Grids of neighbouring elements that share one.

    Attributes:
        width: elements that share a grid.
        low, high: its ends, one a grid.
        inner: the greatest error of an element inside. outer: what may be added at an end.
        single: of one number, for their scale was rounded to zero beside those of others.
    """

    width: int
    low: Array
    high: Array
    inner: Array
    outer: Array
    single: Array | None = None

    def bound(self, values: Array) -> Bound:
        """Return the greatest healthy error of each decoded value, flat."""
        grids = values.reshape(-1, self.width)
        low, high, inner, outer = (
            bounds.reshape(-1, 1).astype(np.float32, copy=False)
            for bounds in (self.low, self.high, self.inner, self.outer)
        )
        edge = (high - low) * np.float32(1e-3)
        allowed = np.abs(grids) * np.float32(CAST) + inner
        ends = (grids >= high - edge).astype(np.int8) - (grids <= low + edge)
        allowed += outer * ((grids <= low + edge) | (grids >= high - edge))
        if self.single is not None:
            ends[self.single.reshape(-1)] = _BOTH_WAYS
        return Bound(allowed.reshape(-1), ends.reshape(-1))


def lost_by_float16(scale: Array) -> Array:
    """Return what a scale loses when it is stored as float16: half a unit in its last place."""
    lost: Array = np.maximum(np.abs(scale) * np.float32(2**-11), np.float32(2**-25))
    return lost
