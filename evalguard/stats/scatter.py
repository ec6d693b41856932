"""How well a pilot knows a scatter: intervals of standard deviations, shares and their ratio."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.core.moments import exact_sum
from evalguard.stats.estimate import Estimate
from evalguard.stats.skewness import uncorrected

# Of fewer documents a t interval is not to be trusted, however small their scatter.
FEWEST_FOR_T = 30
Range = tuple[float, float]
NORMAL_KURTOSIS = 3.0
# Documents alike, beside others that do not differ, whose number would make such a kurtosis: of
# fewer the next ones tell more than these.
_FEW_CARRIERS = 5.0
_SURE_SCATTER, _SURE_CHURN = 0.9, 0.85  # one-sided


def kurtosis(residuals: NDArray[np.float64]) -> float:
    """Fourth moment over the squared second one, of residuals about their centre, shape (n,).

    3 for a normal distribution, 1 for a fair coin, large for heavy tails. It is 3 where nothing
    scatters: there is no shape to speak of.
    """
    scale = float(np.max(np.abs(residuals)))
    if scale == 0.0:
        return NORMAL_KURTOSIS
    squares = np.square(residuals / scale)
    n = residuals.shape[0]
    return float(n * exact_sum(np.square(squares)) / exact_sum(squares) ** 2)


def scatter_factors(n: int, *, kurtosis: float, confidence: float) -> Range:
    """Interval of a standard deviation from n documents, as factors of its estimate.

    Chi-square interval sqrt(df / chi2_{1 -+ confidence}) with the degrees of freedom that give the
    sample variance its true variance, Var(s^2) = sigma^4 (kurtosis - (n - 3) / (n - 1)) / n:

        df = 2 n / (kurtosis - (n - 3) / (n - 1)),

    which is n - 1 for normal documents (D. G. Bonett, Comput. Stat. Data Anal. 50, 2006, 775-782,
    gives the variance). Heavy tails make it wider. A sample underestimates a heavy tail's
    kurtosis, so that the interval is still too narrow there.

    Args:
        n: documents, at least 2.
        kurtosis: of the documents' residuals, at least 1.

    Returns:
        (low, high) with low < 1 < high; high may be infinite.
    """
    spread = max(kurtosis, 1.0) - (n - 3) / (n - 1)
    df = 2.0 * n / spread
    tail = (1.0 - confidence) / 2.0
    low = math.sqrt(df / float(special.chdtri(df, tail)))
    below = float(special.chdtri(df, 1.0 - tail))
    return min(1.0, low), max(1.0, math.sqrt(df / below)) if below > 0.0 else math.inf


def carriers(kurtosis: float, n: int) -> float:
    """About how many of n documents carry their scatter: k equal ones among zeros have n / k."""
    return n / kurtosis


def carried_by_few(kurtosis: float, n: int) -> bool:
    """Whether so few documents carry the scatter that another sample may have any other."""
    return carriers(kurtosis, n) < _FEW_CARRIERS


def planned_scatter(estimate: Estimate, residuals: NDArray[np.float64] | None) -> float | None:
    """The standard error that a plan takes, over that of a t estimate; at least 1.

    A test of skewed documents asks for more than t does: the wider side of its interval, in
    quantiles of t. A sample that has seen little of a long tail scatters too little: the upper
    end (90%, one-sided) of its standard deviation over that of normal documents, where its
    kurtosis is beyond chance (2 of its standard errors, sqrt(24 / n)). Measured by
    ``benchmarks/planned_power.py``.

    Args:
        residuals: of the units, documents or clusters of them, about their drift, shape (n,); None
            where they are unknown.

    Returns:
        None where so few documents carry the scatter that nothing can be planned from it.
    """
    if not 0.0 < estimate.stderr < math.inf:
        return 1.0
    wider = 1.0
    if uncorrected(estimate.method) != estimate.method:
        side = max(estimate.point - estimate.low, estimate.high - estimate.point)
        wider = side / (estimate.quantile(0.5 + estimate.confidence / 2.0) * estimate.stderr)
    if residuals is None or residuals.shape[0] < 2:
        return max(wider, 1.0)
    n, shape = residuals.shape[0], kurtosis(residuals)
    if shape <= NORMAL_KURTOSIS + 2.0 * math.sqrt(24.0 / n):
        return max(wider, 1.0)
    if carried_by_few(shape, n):
        return None
    interval = 2.0 * _SURE_SCATTER - 1.0
    seen, normal = (
        scatter_factors(n, kurtosis=value, confidence=interval)[1]
        for value in (shape, NORMAL_KURTOSIS)
    )
    return max(wider, 1.0) * seen / normal


def planned_churn(flips: int, n: int, *, drift: float = 0.0) -> float:
    """The share of answers that flip which a plan takes: what so many of n leave open.

    The upper end of Clopper and Pearson's interval (85%, one-sided), of one flip where none was
    seen, which is about 3.4 / n: there it is the end at 97%. A drift flips at least its own share
    of answers. Measured by ``benchmarks/planned_power.py``.
    """
    flips = max(flips, 1)
    high = 1.0 if flips >= n else float(special.betaincinv(flips + 1, n - flips, _SURE_CHURN))
    return min(1.0, max(high, drift))


def share_interval(count: int, n: int, *, confidence: float) -> Range:
    """Exact (Clopper-Pearson) interval of a share of which ``count`` of n documents were seen.

    C. J. Clopper, E. S. Pearson, Biometrika 26, 1934, 404-413. With count = 0 its upper end is
    about 3.7 / n at 95%.
    """
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1.0 - tail))
    return low, high


def ratio_range(ratio: float, above: Range, below: Range) -> Range:
    """Interval of a ratio of two scatters from the intervals of its two parts.

    Distances of the ends are joined in quadrature on the log scale (method of variance estimates
    recovery: A. Donner, G. Y. Zou, Stat. Methods Med. Res. 21, 2012, 347-359), as if the parts were
    independent. Both come from the same documents and tend to be large together, which makes the
    true interval narrower.

    Args:
        ratio: the estimate, above 0.
        above, below: intervals of numerator and denominator, as factors of their estimates.
    """
    low = math.hypot(_log(above[0]), _log(below[1]))
    high = math.hypot(_log(above[1]), _log(below[0]))
    return ratio * math.exp(-low), ratio * math.exp(high) if high < 700.0 else math.inf


def _log(factor: float) -> float:
    return math.log(factor) if 0.0 < factor < math.inf else math.inf
