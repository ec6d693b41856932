"""Estimate: a number with its standard error, interval, one-sided p-value and method."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalguard.stats.probability import (
    normal_quantile,
    t_critical,
    t_quantile,
    t_upper_tail,
)

SIGN_FLIP = "cluster-sign-flip"
BOOTSTRAP = "paired-bootstrap-bca"
# Scores of 1 that all lose 0.1 lose 1e-16 of that more or less.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimated drift, positive where the candidate is worse.

    Attributes:
        point: the estimate; ``stderr`` its standard error, in the same unit.
        low, high: two-sided interval at ``confidence``.
        p_value: one-sided, P[at least this much worse] for an unchanged candidate.
        method: name of the test behind ``p_value``.
        interval_method: name of the method behind ``low`` and ``high``.
        differing: units (documents or clusters) whose difference is not 0, where the signs of so
            few decide, or of so many that differ alike; else None.
        df: degrees of freedom of ``stderr``, of a t estimate; else None.
    """

    point: float
    stderr: float
    low: float
    high: float
    p_value: float
    method: str
    interval_method: str
    confidence: float
    differing: int | None = None
    df: float | None = None

    def quantile(self, probability: float) -> float:
        """Student's quantile with its degrees of freedom, or the normal one."""
        if self.df is None:
            return normal_quantile(probability)
        return t_quantile(probability, self.df)


def t_estimate(
    point: float, stderr: float, *, df: float, confidence: float, method: str
) -> Estimate:
    """Student's t interval and one-sided p-value of a mean-like estimate.

    ``point -+ t_{df} * stderr`` and p = P[T_df >= point / stderr]. Without any scatter
    (``stderr`` 0) the interval is a point, and p is 0 for a drift to the worse, else 1: the limits
    of these for less and less scatter. What so few units show of it: see ``few_units``.
    """
    if stderr > 0.0:
        half = t_critical(confidence, df) * stderr
        p_value = t_upper_tail(point / stderr, df)
    else:
        half = 0.0
        p_value = 0.0 if point > 0.0 else 1.0
    return Estimate(
        point=point,
        stderr=stderr,
        low=point - half,
        high=point + half,
        p_value=p_value,
        method=method,
        interval_method=method,
        confidence=confidence,
        df=df,
    )


def scatters(estimate: Estimate) -> bool:
    """Whether its standard error is more than what rounding leaves of equal differences."""
    return estimate.stderr > _ROUNDING * abs(estimate.point)


def all_finite(estimate: Estimate) -> bool:
    """Whether every number of the estimate is finite, but for the ends of an open interval."""
    numbers = (estimate.point, estimate.stderr, estimate.p_value)
    if not all(math.isfinite(number) for number in numbers):
        return False
    return estimate.low < math.inf and estimate.high > -math.inf  # False for NaN too
