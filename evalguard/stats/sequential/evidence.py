"""Evidence: what documents drawn so far deny about the sigma of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

Denied = Callable[[float], bool]

_FARTHEST = 1e9
_HALVINGS = 60


class Evidence(Protocol):
    """Log-wealth of bets against claims about sigma_N, the sigma of all N documents.

    ``reserved`` is the chance of error that was spent beside the bets: a claim may be denied at
    level alpha where its log-wealth is at least log(1 / (alpha - reserved)).
    """

    reserved: float

    def against_more(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or more"; grows with ``margin``."""

    def against_less(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or less"; falls with ``margin``."""


def needed(evidence: Evidence, alpha: float) -> float:
    """The log-wealth that denies a claim at level alpha."""
    return -math.log(alpha - evidence.reserved)


def upper_end(evidence: Evidence, alpha: float, *, start: float) -> float:
    """The smallest margin that sigma_N is denied to reach; infinite where there is none.

    Args:
        start: a margin that is denied or close to one, where the search begins.
    """
    enough = needed(evidence, alpha)
    return _border(lambda margin: evidence.against_more(margin) >= enough, start)


def lower_end(evidence: Evidence, alpha: float, *, start: float) -> float:
    """The largest margin that sigma_N is denied to stay at or below; else minus infinity."""
    enough = needed(evidence, alpha)
    return -_border(lambda margin: evidence.against_less(-margin) >= enough, -start)


def _border(denied: Denied, start: float) -> float:
    """Where ``denied`` turns true, from below; a point that is denied."""
    step, low, high = 1.0, start, start
    if denied(start):
        while denied(low):
            if step > _FARTHEST:
                return -math.inf
            low, high, step = low - step, low, 2.0 * step
    else:
        while not denied(high):
            if step > _FARTHEST:
                return math.inf
            low, high, step = high, high + step, 2.0 * step
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if denied(middle) else (middle, high)
    return high
