"""Levels of sigma over nights, and the change points between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Sigma over a stretch of nights without a change point: a weighted mean, its standard error.

    ``stderr`` is of what was seen to vary between nights; documents that all nights share add none.
    """

    start: int
    stop: int
    mean: float
    stderr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A night from which on sigma has another level.

    Attributes:
        position: of the first night of the new level, counted from 0; ``earliest`` and ``latest``
            are where it may lie at 95% confidence.
        before, after: the levels, up to the neighbouring change points.
        p_value: of the split, in the stretch where it was found; ``level`` what it was held to.
    """

    position: int
    earliest: int
    latest: int
    before: Level
    after: Level
    p_value: float
    level: float

    @property
    def step(self) -> float:
        """By how much sigma moved; positive is worse."""
        return self.after.mean - self.before.mean

    @property
    def stderr(self) -> float:
        """Standard error of the step."""
        return math.hypot(self.before.stderr, self.after.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Change points of a series, in order.

    Attributes:
        levels: one more than there are change points; () for no nights.
        alpha: chance of any false change point.
        smallest_step: smaller ones are not looked for.
        seed: of the permutations.
        correlation: of a night with the next around the levels, as far as it is seen (0 below 3
            standard errors); the levels' standard errors and ranges count it.
    """

    points: tuple[ChangePoint, ...]
    levels: tuple[Level, ...]
    n: int
    alpha: float
    shortest: int
    smallest_step: float
    seed: int
    correlation: float = 0.0
