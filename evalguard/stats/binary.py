"""0/1 metrics: McNemar's tests on the flips, and Tango's score interval.

b counts documents that got worse (base right, candidate wrong), c those that got better, of n;
m = b + c. Only the flips carry information about the drift (b - c) / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from evalguard.stats.probability import (
    Estimate,
    chi_square_upper_tail,
    fair_coin_upper_tail,
    normal_critical,
)

Alternative = Literal["greater", "two-sided"]


def mcnemar_exact(b: int, c: int, *, alternative: Alternative = "greater") -> float:
    """Exact McNemar p-value: P[Bin(b + c, 1/2) >= b] (McNemar 1947; exact conditional form).

    "two-sided" doubles the smaller tail, at most 1. Without any flip it is 1.
    """
    m = b + c
    if alternative == "two-sided":
        return min(1.0, 2.0 * fair_coin_upper_tail(max(b, c), m))
    return fair_coin_upper_tail(b, m)


def mcnemar_mid_p(b: int, c: int) -> float:
    """One-sided mid-p: P[Bin(m, 1/2) > b] + P[Bin(m, 1/2) = b] / 2, the mean of both tails.

    Less conservative than the exact test: its size comes nearer to the level, and was never seen
    above it in 9,595 scenarios (M. W. Fagerland, S. Lydersen, P. Laake, BMC Med. Res. Methodol.
    13:91, 2013). It decides; the exact p-value stands beside it.
    """
    m = b + c
    return 0.5 * (fair_coin_upper_tail(b, m) + fair_coin_upper_tail(b + 1, m))


def mcnemar_chi_square(b: int, c: int) -> tuple[float, float]:
    """McNemar's chi-square (b - c)^2 / (b + c), uncorrected, and its p-value with 1 df.

    The asymptotic two-sided test of textbooks, for reference. (0, 1) without any flip.
    """
    m = b + c
    if m == 0:
        return 0.0, 1.0
    statistic = (b - c) ** 2 / m
    return statistic, chi_square_upper_tail(statistic, 1)


def flip_stderr(b: int, c: int, n: int) -> float:
    """Paired standard error of (b - c) / n: sqrt(m - (b - c)^2 / n) / n."""
    return math.sqrt(max(0.0, (b + c) - (b - c) ** 2 / n)) / n


def tango_interval(b: int, c: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Tango's score interval of the paired difference delta = p_worse - p_better.

    The deltas that the score test does not reject: with q(delta) the maximum-likelihood estimate
    of p_better when the difference is delta,
    |b - c - n delta| <= z sqrt(n (2 q(delta) + delta (1 - delta))), within [-1, 1]
    (T. Tango, Statistics in Medicine 17, 1998, 891-908). Swapping b and c mirrors it exactly.

    Raises:
        ValueError: for negative counts or more flips than documents.
    """
    if b < 0 or c < 0 or b + c > n or n < 1:
        raise ValueError(f"flips must be counts of documents: b={b}, c={c}, n={n}")
    z = normal_critical(confidence)
    return _tango_low(b, c, n, z), -_tango_low(c, b, n, z)


def _tango_low(b: int, c: int, n: int, z: float) -> float:
    """The lower end: the smallest delta with score <= z."""
    if c == n:
        return -1.0
    if b + c == 0:  # the score's numerator and variance both vanish at delta = 0
        return -z * z / (n + z * z)
    if b == n:  # the same at delta = 1
        return (n - z * z) / (n + z * z)

    def excess(delta: float) -> float:
        variance = 2.0 * _better_given(delta, b, c, n) + delta * (1.0 - delta)
        return b - c - n * delta - z * math.sqrt(max(0.0, n * variance))

    return float(optimize.brentq(excess, -1.0, (b - c) / n, xtol=1e-14, rtol=1e-14))


def _better_given(delta: float, b: int, c: int, n: int) -> float:
    """Maximum-likelihood estimate of p_better under p_worse - p_better = delta."""
    linear = (2.0 * n - b + c) * delta - b - c
    constant = -c * delta * (1.0 - delta)
    root = math.sqrt(max(0.0, linear * linear - 8.0 * n * constant))
    return (root - linear) / (4.0 * n)


def flip_estimate(b: int, c: int, n: int, *, confidence: float) -> Estimate:
    """Drift (b - c) / n of a 0/1 metric.

    The p-value is McNemar's mid-p; the interval is Tango's, with an end pulled back to 0 where the
    mid-p at the same one-sided level, (1 - confidence) / 2, denies that the drift is real: the
    mid-p decides, so the interval never claims what it does not grant. The other way round they
    never disagree at confidences from 0.9 to 0.99.
    """
    low, high = tango_interval(b, c, n, confidence=confidence)
    alpha = (1.0 - confidence) / 2.0
    p_value = mcnemar_mid_p(b, c) if b + c else 1.0
    if p_value > alpha:
        low = min(low, 0.0)
    if mcnemar_mid_p(c, b) > alpha:
        high = max(high, 0.0)
    return Estimate(
        point=(b - c) / n,
        stderr=flip_stderr(b, c, n),
        low=low,
        high=high,
        p_value=p_value,
        method="mcnemar-mid-p",
        interval_method="tango-score",
        confidence=confidence,
        differing=b + c,
    )


# Several tests at once.


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm-adjusted p-values, in the order given.

    Rejecting where an adjusted value is at most alpha keeps the chance of any false rejection at
    or below alpha, whatever the dependence (S. Holm, Scand. J. Statist. 6, 1979, 65-70).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Benjamini-Hochberg q-values, in the order given.

    q = min over all p_j >= p of m p_j / rank_j, at most 1. Taking what has q <= alpha for real
    keeps the expected share of false ones among them at or below alpha, for tests that are
    independent or positively dependent (Y. Benjamini, Y. Hochberg, J. R. Statist. Soc. B 57, 1995,
    289-300; Y. Benjamini, D. Yekutieli, Ann. Statist. 29, 2001, 1165-1188).
    """
    count = len(p_values)
    order = sorted(range(count), key=lambda index: p_values[index], reverse=True)
    adjusted = [0.0] * count
    lowest = 1.0
    for place, index in enumerate(order):
        lowest = min(lowest, p_values[index] * count / (count - place))
        adjusted[index] = lowest
    return tuple(adjusted)


def family_false_alarm(
    chances: Sequence[float], further: float = 0.0
) -> tuple[float | None, float | None]:
    """Bonferroni's bound, min(1, sum p_k), and 1 - prod(1 - p_k), as if independent.

    Args:
        chances: of each test's false alarm; None is returned for none.
        further: added to the bound alone: a chance that is not one of these tests'.
    """
    if not chances:
        return None, None
    bound = min(1.0, math.fsum([*chances, further]))
    if 1.0 in chances:
        return bound, 1.0
    return bound, -math.expm1(math.fsum(math.log1p(-chance) for chance in chances))


# Wilcoxon's signed-rank test: a companion that no single document can carry.


# Differences from which on scipy takes the normal distribution, whatever they are.
_LARGE = 51


def wilcoxon_signed_rank(d: NDArray[np.float64]) -> float:
    """One-sided p-value that differences lie symmetrically about 0 (Wilcoxon 1945).

    Documents without any difference are left out, as Wilcoxon did (scipy's ``zero_method``
    "wilcox"); ties share their mean rank. Up to 50 differences without ties the distribution is
    exact, else normal with the variance corrected for ties (scipy's ``method`` "auto").

    It asks about the typical document, not about the mean: with skewed differences the two can
    differ, and then the mean is what the metric is made of. Without any difference p is 1.

    Args:
        d: finite differences, float64, shape (n,), positive where the candidate is worse.
    """
    different = d[d != 0.0]
    n = different.shape[0]
    if n == 0:
        return 1.0
    if n < _LARGE:
        from scipy import stats  # half a second that only few documents need cost

        return float(stats.wilcoxon(different, alternative="greater", method="auto").pvalue)
    _, places, ties = np.unique(np.abs(different), return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2.0
    above = float(np.sum(ranks[places.reshape(-1)][different > 0.0]))
    variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0
    variance -= float(np.sum(ties * (ties.astype(np.float64) ** 2 - 1.0))) / 48.0
    return float(special.ndtr((n * (n + 1.0) / 4.0 - above) / math.sqrt(variance)))
