"""The few distribution functions that the tests need, typed; scipy.special does the arithmetic."""

from __future__ import annotations

import math

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
