"""The few distribution functions that the tests need, typed; scipy.special does the arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.core.scores import ScoreTable


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


def chi_square_upper_tail(x: float, df: float) -> float:
    """P[X > x] of the chi-square distribution with ``df`` degrees of freedom."""
    return float(special.chdtrc(df, x))


def fair_coin_upper_tail(heads: int, tosses: int) -> float:
    """P[Bin(tosses, 1/2) >= heads], exact through the regularised incomplete beta function."""
    if heads <= 0:
        return 1.0
    if heads > tosses:
        return 0.0
    return float(special.betainc(heads, tosses - heads + 1, 0.5))


def skellam_upper_tail(lead: int, flips: int) -> float:
    """P[B - C >= lead], B and C independent Poisson counts of mean flips / 2; lead >= 0."""
    if flips == 0:
        return float(lead <= 0)
    most = lead + int(12.0 * math.sqrt(flips)) + 40
    terms = special.ive(np.arange(lead, most), float(flips))
    return min(1.0, float(np.sum(terms)))


def normal_quantile(probability: float) -> float:
    """The z with P[Z <= z] = probability."""
    return float(special.ndtri(probability))


def t_quantile(probability: float, df: float) -> float:
    """The t with P[T <= t] = probability, with ``df`` degrees of freedom."""
    return float(special.stdtrit(df, probability))


# Estimate: a number with its standard error, interval, one-sided p-value and method.


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


# Means, standard deviations and ratios of sums, summed exactly.
#
# ``math.fsum`` returns the correctly rounded sum, so that the order of documents changes no bit of
# any result. Its cost is about 0.1 microseconds a document.


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """A mean or a ratio of sums, with its standard error over documents."""

    point: float
    stderr: float


def exact_sum(values: Array) -> float:
    """The correctly rounded sum of a float64 array, shape (n,)."""
    return math.fsum(values.tolist())


def mean_moments(values: Array) -> Moments:
    """Mean and its standard error sd / sqrt(n), sd with n - 1, as lm-eval's ``mean_stderr``.

    ``values`` is float64, shape (n,), n >= 2. Equal values give exactly their value and 0.
    """
    n = values.shape[0]
    first = float(values[0])
    if bool(np.all(values == first)):
        return Moments(point=first, stderr=0.0)
    mean = exact_sum(values) / n
    return Moments(point=mean, stderr=_root_sum_of_squares(values - mean) / math.sqrt(n * (n - 1)))


def ratio_moments(values: Array, weights: Array) -> Moments:
    """Ratio of sums R = sum v / sum w, and its standard error.

    With e_i = v_i - R w_i, SE = sqrt(n / (n - 1) * sum e_i^2) / sum w (the linearised ratio
    estimator; Cochran, Sampling Techniques, 1977, section 6.3). Both arrays are float64, shape
    (n,), n >= 2, and sum w > 0. With all weights 1 it equals :func:`mean_moments`.
    """
    n = values.shape[0]
    total = exact_sum(weights)
    ratio = exact_sum(values) / total
    residual = _root_sum_of_squares(values - ratio * weights)
    return Moments(point=ratio, stderr=math.sqrt(n / (n - 1)) * residual / total)


def moments(values: Array, weights: Array | None) -> Moments:
    """:func:`ratio_moments` where there are weights, else :func:`mean_moments`."""
    return mean_moments(values) if weights is None else ratio_moments(values, weights)


def _root_sum_of_squares(values: Array) -> float:
    """sqrt(sum v^2), scaled by a power of two (exact) so that no square over- or underflows."""
    largest = float(np.max(np.abs(values)))
    if largest == 0.0:
        return 0.0
    scale = math.ldexp(1.0, math.frexp(largest)[1])
    return scale * math.sqrt(exact_sum(np.square(values / scale)))


# SigmaScale: from a drift on a metric's estimation scale to sigma, and back (see ``drift``).


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


# What can be said from two printed results alone, without documents.
#
# These are the numbers of port reports. They never decide anything here: without documents there
# is not a pairing, and the unpaired test throws away most of what the same run could have shown.


def harness_sigma(
    base: float, base_stderr: float, candidate: float, *, higher_is_better: bool
) -> float:
    """(candidate - base) / base_stderr, signed so that positive is worse.

    Raises:
        ValueError: for a standard error that is not positive and finite.
    """
    if not (base_stderr > 0.0 and math.isfinite(base_stderr)):
        raise ValueError(f"a standard error must be positive and finite, not {base_stderr!r}")
    drift = base - candidate if higher_is_better else candidate - base
    return drift / base_stderr


def one_sided_p(sigma: float) -> float:
    """1 - Phi(sigma): how a sigma reads if it is taken for a z-score (normal approximation)."""
    return normal_upper_tail(sigma)


def unpaired_z(
    base: float, base_stderr: float, candidate: float, candidate_stderr: float
) -> tuple[float, float]:
    """Two-sample z = (candidate - base) / sqrt(SE_base^2 + SE_cand^2), and its two-sided p.

    For reference only: it ignores that both models answered the same documents.
    """
    z = (candidate - base) / math.hypot(base_stderr, candidate_stderr)
    return z, 2.0 * normal_upper_tail(abs(z))


# Totals of a finite set of documents, from a random sample of it.


def expected_total(
    values: NDArray[np.float64], total: int, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Sum over all documents (tokens, say) from a simple random sample without replacement.

    N mean -+ t_{n-1} N sd / sqrt(n) sqrt(1 - n / N) (W. G. Cochran, Sampling Techniques, 1977,
    sections 2.6-2.9). The sample's own sum is a floor, and with n = N it is the answer.

    Args:
        values: one per sampled document, not negative, shape (n,), n >= 1.
        total: N, at least n.

    Returns:
        (expected, low, high); the interval is (sample's sum, infinity) for one of many documents.
    """
    n, seen = values.shape[0], math.fsum(values.tolist())
    if n >= total:
        return seen, seen, seen
    if n < 2:
        return seen * total, seen, math.inf
    moments = mean_moments(values)
    half = t_critical(confidence, n - 1) * moments.stderr * math.sqrt(1.0 - n / total)
    expected = total * moments.point
    return expected, max(seen, expected - total * half), expected + total * half
