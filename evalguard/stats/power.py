"""Power: the smallest drift that documents can show, and the documents that a drift needs.

A drift counts as shown where the paired one-sided test at level alpha rejects, which is where
the interval at confidence 1 - 2 alpha lies above 0. alpha is therefore (1 - confidence) / 2.
Power is the chance that this happens for a drift that is truly there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from evalguard.stats.probability import normal_quantile, t_quantile

_MOST_DOCUMENTS = 10**15
LEAST_DRIFT = 1e-12  # where flips are none but the drift's, 0 would be a solution too


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


def paired_documents_to_detect(
    scatter: float, drift: float, *, alpha: float, power: float
) -> int | None:
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
