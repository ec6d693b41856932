"""Estimate: a number with its standard error, interval, one-sided p-value and method.

By hand: ``scipy.optimize`` takes as long to import as all else that reads a finished run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special


def normal_upper_tail(z: float) -> float:
    """P[Z > z] of the standard normal distribution."""
    return float(special.ndtr(-z))


def normal_critical(confidence: float) -> float:
    """The z with P[|Z| <= z] = confidence."""
    return float(-special.ndtri((1.0 - confidence) / 2.0))


def normal_tail_mean(fraction: float) -> float:
    """Mean of the uppermost ``fraction`` of a standard normal distribution."""
    z = float(special.ndtri(fraction))
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / fraction


def t_upper_tail(t: float, df: float) -> float:
    """P[T > t] of Student's t distribution with ``df`` degrees of freedom."""
    return float(special.stdtr(df, -t))


def t_critical(confidence: float, df: float) -> float:
    """The t with P[|T| <= t] = confidence."""
    return float(-special.stdtrit(df, (1.0 - confidence) / 2.0))


def fair_coin_upper_tail(heads: int, tosses: int) -> float:
    """P[Bin(tosses, 1/2) >= heads], exact through the regularised incomplete beta function."""
    if heads <= 0:
        return 1.0
    if heads > tosses:
        return 0.0
    return float(special.betainc(heads, tosses - heads + 1, 0.5))


def binomial_lower_tail(hits: int, n: int, share: float) -> float:
    """P[Bin(n, share) <= hits]."""
    return float(special.bdtr(hits, n, share))


def skellam_upper_tail(lead: int, flips: float) -> float:
    """P[B - C >= lead], B and C independent Poisson counts of mean flips / 2; lead >= 0."""
    if flips == 0:
        return float(lead <= 0)
    most = lead + int(12.0 * math.sqrt(flips)) + 40
    terms = special.ive(np.arange(lead, most), flips)
    return min(1.0, float(np.sum(terms)))


def normal_quantile(probability: float) -> float:
    """The z with P[Z <= z] = probability."""
    return float(special.ndtri(probability))


def t_quantile(probability: float, df: float) -> float:
    """The t with P[T <= t] = probability, with ``df`` degrees of freedom."""
    return float(special.stdtrit(df, probability))


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
        df: degrees of freedom of ``stderr``, of a t estimate or a bootstrap, which takes Student's
            quantiles too; else None.
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


# What is left of the distance between the ends is 2^-64 of it, or two neighbouring numbers.
_HALVINGS = 64


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function changes its sign between two numbers.

    Raises:
        ValueError: the function has one sign at both ends.
    """
    at_low, at_high = function(low), function(high)
    if at_low == 0.0:
        return low
    if at_high == 0.0:
        return high
    if (at_low < 0.0) == (at_high < 0.0):
        raise ValueError(f"one sign at both ends: f({low}) = {at_low}, f({high}) = {at_high}")
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        value = function(middle)
        if value == 0.0 or not low < middle < high:
            return middle
        if (value < 0.0) == (at_low < 0.0):
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
