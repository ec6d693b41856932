"""SigmaScale: from a drift on a metric's estimation scale to sigma, and back (see ``drift``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalguard.core.scores import ScoreTable

_ON_LOG_SCALE = ("perplexity", "weighted_perplexity")


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaScale:
    """An increasing map through 0.

    Attributes:
        unit: standard error of the base on the estimation scale.
        log_sign: 0 for a linear scale; on a log scale +1 if a lower metric is better, else -1.
    """

    unit: float
    log_sign: int = 0

    @staticmethod
    def log_sign_of(table: ScoreTable) -> int:
        """The ``log_sign`` of a table's metric."""
        if table.aggregation not in _ON_LOG_SCALE:
            return 0
        return -1 if table.higher_is_better else 1

    def sigma_of(self, drift: float) -> float:
        """Sigma of a drift on the estimation scale; +-inf where the unit is 0 and it is not."""
        amount = drift if self.log_sign == 0 else self.log_sign * _expm1(self.log_sign * drift)
        if self.unit == 0.0:
            return math.copysign(math.inf, amount) if amount else 0.0
        return amount / self.unit

    def drift_of(self, sigma: float) -> float:
        """The drift on the estimation scale that has this sigma (the inverse map)."""
        amount = sigma * self.unit
        if self.log_sign == 0:
            return amount
        inner = self.log_sign * amount
        return self.log_sign * math.log1p(inner) if inner > -1.0 else math.inf


def _expm1(x: float) -> float:
    """exp(x) - 1, infinite beyond the largest double."""
    try:
        return math.expm1(x)
    except OverflowError:
        return math.inf
