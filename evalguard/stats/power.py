"""Power: the smallest drift that documents can show, and the documents that a drift needs.

A drift counts as shown where the paired one-sided test at level alpha rejects, which is where
the interval at confidence 1 - 2 alpha lies above 0. alpha is therefore (1 - confidence) / 2.
Power is the chance that this happens for a drift that is truly there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from evalguard.stats.probability import (
    exact_sum,
    normal_critical,
    normal_quantile,
    t_quantile,
)

_MOST_DOCUMENTS = 10**15
_LEAST_DRIFT = 1e-12  # where flips are none but the drift's, 0 would be a solution too


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


# Power of 0/1 metrics, from the share of documents that flip between right and wrong.
#
# psi is that share, in either direction; a drift delta is the share lost minus the share won. A
# drift cannot be larger than the share that flips, so psi counts as at least delta.


def detectable_flip_drift(flip_rate: float, n: int, *, alpha: float, power: float) -> float:
    """Smallest drift delta that McNemar's mid-p on n documents detects; at most 1.

    The delta at which ``flip_documents_to_detect`` asks for n documents.
    """
    check_power(alpha, power)

    def surplus(delta: float) -> float:
        return math.sqrt(n) * delta - _needed(flip_rate, delta, alpha, power)

    if surplus(1.0) <= 0.0:
        return 1.0
    return float(optimize.brentq(surplus, _LEAST_DRIFT, 1.0, xtol=1e-14, rtol=1e-12))


def flip_documents_to_detect(
    flip_rate: float, drift: float, *, alpha: float, power: float
) -> int | None:
    """Documents after which McNemar's mid-p detects a drift; None for no drift.

    sqrt(n) delta = z_{1-alpha} sqrt(psi) + z_{power} sqrt(psi - delta^2): the normal approximation
    of R. J. Connor (Biometrics 43, 1987, 207-211); the mid-p asks for no continuity correction.
    """
    check_power(alpha, power)
    if not drift > 0.0:
        return None
    if drift >= 1.0:
        return 2
    needed = _needed(flip_rate, drift, alpha, power)
    return max(2, math.ceil((needed / drift) ** 2))


def flip_documents_to_show_harmless(
    flip_rate: float, margin: float, *, alpha: float, power: float
) -> int | None:
    """Documents after which a candidate without a drift is shown to lose less than ``margin``.

    Those of ``documents_to_show_no_loss``, and at least the z_{1-alpha}^2 (1 - margin) / margin
    after which Tango's interval ends below the margin when not a single document flips. None for a
    margin of 0.
    """
    check_power(alpha, power)
    if not margin > 0.0:
        return None
    z = normal_quantile(1.0 - alpha)
    scattered = documents_to_show_no_loss(flip_rate, margin, alpha=alpha, power=power)
    return max(2, scattered, math.ceil(z * z * (1.0 - margin) / margin))


def _needed(flip_rate: float, delta: float, alpha: float, power: float) -> float:
    psi = max(flip_rate, delta)
    spread = math.sqrt(max(psi - delta * delta, 0.0))
    return normal_quantile(1.0 - alpha) * math.sqrt(psi) + normal_quantile(power) * spread


# How many documents a question needs, and how small a drift so many can show.


POWER = 0.8
_MOST_DECIDING = 10**9


def decidable_ratio(alpha: float, metrics: int = 1, *, power: float = POWER) -> float:
    """The smallest margin, in paired standard errors, that so many runs decide.

    With z the normal quantile at the one-sided level alpha and z_K that at alpha / K, which the
    gate asks of one of its K metrics (Bonferroni's, so that Holm asks no more), an estimate D with
    standard error S and a margin m is undecided between m - z S (below, a drift above the margin is
    excluded) and z_K S (above, it is real). That window is z + z_K - m / S standard errors long:
    wherever the true drift lies, it holds at most 2 Phi(length / 2) - 1 of all estimates, which is
    1 - power at the length that this leaves.
    """
    window = -normal_quantile(alpha) - normal_quantile(alpha / max(metrics, 1))
    return window - _tolerable_length(power)


def documents_to_decide(
    ratio: float, *, known: int, alpha: float, metrics: int = 1, fixed: bool, power: float = POWER
) -> int | None:
    """Documents after which so many runs are decided, whatever the true drift is.

    The known documents are among them: what is known of the estimate does not scatter anew, so that
    the window of ``decidable_ratio`` counts by sqrt(1 - known / N) of its length.

    Args:
        ratio: the margin over the paired standard error of the known documents.
        metrics: K, that the gate judges together.
        fixed: whether the margin stays what it is; else it shrinks as the standard error does.

    Returns:
        The number, above ``known``; None where no number below a billion does.
    """
    tolerable = _tolerable_length(power)
    window = decidable_ratio(alpha, metrics, power=power) + tolerable

    def enough(documents: int) -> bool:
        if documents <= known:
            return False
        length = window - ratio * (math.sqrt(documents / known) if fixed else 1.0)
        return length <= tolerable * math.sqrt(1.0 - known / documents)

    possible = ratio > 0.0 if fixed else window - ratio < tolerable
    found = smallest(enough, known + 1.0) if possible else None
    return found if found is not None and found <= _MOST_DECIDING else None


def _tolerable_length(power: float) -> float:
    """Length, in standard errors, of the interval that holds 1 - power of a normal at most."""
    return 2.0 * normal_quantile(1.0 - power / 2.0)


def fewest_signs(confidence: float) -> int:
    """How many differences, all of one sign, a fair coin gives at most (1 - confidence) / 2 of."""
    return math.ceil(math.log2(2.0 / (1.0 - confidence)))


def documents_to_show_no_loss(
    flip_rate: float, margin: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Documents that show a 0/1 metric to have lost less than ``margin``, if it lost nothing.

    n = (z_alpha + z_power)^2 * flip_rate / margin^2, one-sided at ``alpha``: the scatter of a
    document's difference is that of its flips, sqrt(flip_rate), where as many are lost as won.

    Args:
        flip_rate: share of documents that one model has right and the other wrong, from a pilot.
        margin: the loss to exclude, in the metric's unit (0.01: one percentage point).
    """
    return math.ceil(_quantiles(2.0 * alpha, power) ** 2 * flip_rate / (margin * margin))


def documents_to_detect(
    effect: float,
    *,
    between: float,
    within: float = 0.0,
    repeats: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Documents that show a drift of ``effect``, two-sided at ``alpha``.

    n = (z_{alpha/2} + z_power)^2 * variance / effect^2 with the variance of a document's difference
    between + 2 within / repeats (E. Miller, Adding Error Bars to Evals, 2024, section 5).

    Args:
        effect: the drift, in the metric's unit.
        between: variance over documents of their expected difference.
        within: variance of one answer of one model to one document; 0 where answers do not vary.
        repeats: answers of each model to each document that are averaged.
    """
    variance = between + 2.0 * within / repeats
    return math.ceil(_quantiles(alpha, power) ** 2 * variance / (effect * effect))


def smallest_effect(
    n: int,
    *,
    between: float,
    within: float = 0.0,
    repeats: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """The drift that ``n`` documents show; the inverse of :func:`documents_to_detect`."""
    return _quantiles(alpha, power) * math.sqrt((between + 2.0 * within / repeats) / n)


def _quantiles(alpha: float, power: float) -> float:
    """z_{alpha/2} + z_power of the standard normal distribution."""
    return normal_critical(1.0 - alpha) + normal_critical(2.0 * power - 1.0)


# How well a pilot knows a scatter: intervals of standard deviations, shares and their ratio.


Range = tuple[float, float]

NORMAL_KURTOSIS = 3.0


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
