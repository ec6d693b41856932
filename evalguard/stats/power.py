"""Power: the smallest drift that documents can show, and the documents that a drift needs.

A drift counts as shown where the paired one-sided test at level alpha rejects, which is where the
interval at confidence 1 - 2 alpha lies above 0. alpha is therefore (1 - confidence) / 2. Power is
the chance that this happens for a drift that is truly there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from evalguard.stats.probability import normal_quantile, t_quantile

_MOST_DOCUMENTS = 10**15


def check_power(alpha: float, power: float) -> None:
    """Check a level and a power.

    Raises:
        ValueError: unless 0 < alpha < 0.5 and 0.5 <= power < 1.
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"a one-sided level lies between 0 and 0.5, not {alpha!r}")
    if not 0.5 <= power < 1.0:
        raise ValueError(f"a power lies between 0.5 and 1, not {power!r}")


def detectable_drift(scatter: float, n: int, *, alpha: float, power: float) -> float:
    """Smallest true drift of a mean that a paired t test on n documents detects.

    (t_{1-alpha} + t_{power}) * scatter / sqrt(n), both quantiles with n - 1 degrees of freedom:
    Student's approximation to the non-central t, whose power it meets within one point from 30
    documents on (J. M. Lachin, Controlled Clinical Trials 2, 1981, 93-113, has the same form with
    normal quantiles).

    Args:
        scatter: standard deviation of the per-document differences.
        n: documents, at least 2.

    Raises:
        ValueError: for an impossible level, power or number of documents.
    """
    check_power(alpha, power)
    if n < 2:
        raise ValueError(f"a standard error needs at least 2 documents, not {n}")
    quantiles = t_quantile(1.0 - alpha, n - 1) + t_quantile(power, n - 1)
    return quantiles * scatter / math.sqrt(n)


def documents_to_detect(scatter: float, drift: float, *, alpha: float, power: float) -> int | None:
    """Smallest n of which ``detectable_drift`` is at most ``drift``; at least 2.

    By symmetry it is also the n after which a paired t interval ends below a margin of this size
    (non-inferiority) with this power, for a candidate whose true drift is 0.

    Returns:
        None for a drift that is not positive, or a number beyond 10^15.
    """
    check_power(alpha, power)
    if not (drift > 0.0 and math.isfinite(scatter)):
        return None
    z = normal_quantile(1.0 - alpha) + normal_quantile(power)
    start = (z * scatter / drift) ** 2

    def enough(n: int) -> bool:
        return detectable_drift(scatter, n, alpha=alpha, power=power) <= drift

    return smallest(enough, start)


def smallest(enough: Callable[[int], bool], start: float) -> int | None:
    """Smallest whole n >= 2 for which ``enough`` holds, given that it holds for all above it.

    Args:
        start: where to look first.

    Returns:
        None where that is beyond 10^15.
    """
    if not start < _MOST_DOCUMENTS:
        return None
    low, high = 1, max(2, math.ceil(start))
    while not enough(high):
        if high > _MOST_DOCUMENTS:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def error_bar_documents(
    effect: float, *, between: float, within: float = 0.0, repeats: int = 1,
    alpha: float = 0.05, power: float = 0.8,
) -> int:  # fmt: skip
    """Questions for a two-sided paired comparison of two models, by Miller's formula.

    n = (z_{1-alpha/2} + z_{power})^2 (omega^2 + 2 sigma^2 / K) / effect^2, where both models have
    the same sigma^2 and K (E. Miller, "Adding Error Bars to Evals", 2024, arXiv 2411.00640,
    section 5). Rounded to the nearest whole number, as there.

    Args:
        effect: the difference of the two means to be seen.
        between: omega^2, variance over questions of the difference of the models' mean scores.
        within: sigma^2, mean variance of one model's score between answers to one question.
        repeats: K, answers per question.
        alpha: two-sided.
    """
    check_power(alpha / 2.0, power)
    z = normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)
    return round(z * z * (between + 2.0 * within / repeats) / effect**2)


def error_bar_effect(
    n: int, *, between: float, within: float = 0.0, repeats: int = 1,
    alpha: float = 0.05, power: float = 0.8,
) -> float:  # fmt: skip
    """Smallest difference that n questions show: ``error_bar_documents`` solved for the effect."""
    check_power(alpha / 2.0, power)
    z = normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)
    return z * math.sqrt((between + 2.0 * within / repeats) / n)
