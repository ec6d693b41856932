"""Yardstick: in what drift is measured, and in what it is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Unit = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """``size``: the base's standard error, in units of the scores.

    ``unit``: from a mean drift in yardsticks to what is reported, monotone; None: as it is. Where a
    metric is not a mean over documents but a monotone function of one, decisions are taken on the
    mean, and what is reported are differences of the metric.
    """

    size: float
    unit: Unit | None = None

    def reported(self, sigma: float) -> float:
        """What a drift of so many yardsticks is reported as; 0 is 0."""
        return sigma if self.unit is None else self.unit(sigma) - self.unit(0.0)

    def reported_with_error(self, sigma: float, error: float) -> tuple[float, float]:
        """Likewise, with its standard error: half of what lies between one below and one above."""
        above, below = self.reported(sigma + error), self.reported(sigma - error)
        return self.reported(sigma), abs(above - below) / 2.0
