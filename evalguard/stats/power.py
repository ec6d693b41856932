"""Power: the smallest drift that documents can show, and the documents that a drift needs.

A drift counts as shown where the paired one-sided test at level alpha rejects, which is where
the interval at confidence 1 - 2 alpha lies above 0. alpha is therefore (1 - confidence) / 2.
Power is the chance that this happens for a drift that is truly there.

psi is that share, in either direction; a drift delta is the share lost minus the share won. A
drift cannot be larger than the share that flips, so psi counts as at least delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.core.moments import mean_moments
from evalguard.stats.estimate import (
    find_root,
    normal_critical,
    normal_quantile,
    t_critical,
    t_quantile,
)


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


POWER = 0.8
MOST_REPEATS = 10_000
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
    fewest = smallest(enough, known + 1.0) if possible else None
    return fewest if fewest is not None and fewest <= _MOST_DECIDING else None


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
    quantiles = normal_critical(1.0 - 2.0 * alpha) + normal_critical(2.0 * power - 1.0)
    return math.ceil(quantiles**2 * flip_rate / (margin * margin))


def repeats_to_show(
    effect: float, *, n: int, quantiles: float, variance: Callable[[int], float]
) -> int | None:
    """The fewest answers to each of n documents that show a drift of ``effect``.

    quantiles * sqrt(variance(K) / n) <= effect, where the variance of a document's difference is
    between + within / K, so that no number is enough where ``between`` alone is too large
    (E. Miller, Adding Error Bars to Evals, 2024, section 5).

    Args:
        effect: the drift, in the metric's unit.
        quantiles: of the standard error that the drift has to be.
        variance: of a document's mean difference, by K; falls as K grows.

    Returns:
        None where not even ``MOST_REPEATS`` are enough.
    """

    def enough(repeats: int) -> bool:
        return quantiles * math.sqrt(variance(repeats) / n) <= effect * (1.0 + 1e-12)

    if enough(1):
        return 1
    if not enough(MOST_REPEATS):
        return None
    return smallest(enough, 2.0)


_HALVINGS = 16  # to a hundred-thousandth


def detectable_flip_drift(flip_rate: float, n: int, *, alpha: float, power: float) -> float:
    """Smallest drift delta that McNemar's mid-p on n documents detects; at most 1.

    The delta at which ``flip_documents_to_detect`` asks for n documents.
    """
    check_power(alpha, power)

    def surplus(delta: float) -> float:
        return math.sqrt(n) * delta - _needed(flip_rate, delta, alpha, power)

    if surplus(1.0) <= 0.0:
        return 1.0
    return find_root(surplus, LEAST_DRIFT, 1.0)


def failing_flip_drift(
    flip_rate: float, n: int, *, margin: float, alpha: float, power: float
) -> float:
    """Smallest drift delta that fails n documents with a power: above a margin, and real.

    Exact: the flips m of n are binomial with psi, those lost binomial with (1 + delta / psi) / 2
    among m (R. J. Connor, Biometrics 43, 1987), and the mid-p of m and the margin say how many
    have to be. 1 where no drift does.

    Args:
        flip_rate: psi, between 0 and 1.
        margin: the drift that is tolerated, in units of the metric.
        alpha: of the mid-p, one-sided.
    """
    check_power(alpha, power)
    low, high = min(max(margin, 0.0), 1.0), 1.0
    if failing_chance(flip_rate, high, n, margin=margin, alpha=alpha) < power:
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if failing_chance(flip_rate, middle, n, margin=margin, alpha=alpha) < power:
            low = middle
        else:
            high = middle
    return high


def failing_chance(flip_rate: float, drift: float, n: int, *, margin: float, alpha: float) -> float:
    """The chance that n documents with such a drift fail; arguments as ``failing_flip_drift``."""
    psi = min(1.0, max(flip_rate, drift))
    spread = 9.0 * math.sqrt(n * psi * (1.0 - psi)) + 9.0
    flips = np.arange(max(0, math.floor(n * psi - spread)), min(n, math.ceil(n * psi + spread)) + 1)
    weights = special.bdtr(flips, n, psi) - np.where(
        flips > 0, special.bdtr(np.maximum(flips - 1, 0), n, psi), 0.0
    )
    fewest = _fewest_lost(flips, n, margin, alpha)
    share = (1.0 + drift / psi) / 2.0
    reach = np.where(fewest > flips, 0.0, special.bdtrc(np.maximum(fewest - 1, 0), flips, share))
    return float(np.sum(weights * reach))


def _fewest_lost(
    flips: NDArray[np.int64], n: int, margin: float, alpha: float
) -> NDArray[np.int64]:
    """Of each number of flips how many have to be lost; more than there are where none do."""
    above = np.floor((flips + n * margin) / 2.0 * (1.0 + 1e-12)).astype(np.int64) + 1
    low, high = np.zeros_like(flips), flips + 1
    while np.any(low < high):  # the mid-p falls with the documents lost
        lost = (low + high) // 2
        beyond, least = (special.bdtrc(np.maximum(k - 1, 0), flips, 0.5) for k in (lost + 1, lost))
        beyond = np.where(lost + 1 > flips, 0.0, beyond)
        least = np.where(lost == 0, 1.0, np.where(lost > flips, 0.0, least))
        real = (beyond + least) / 2.0 <= alpha
        low, high = np.where(real, low, lost + 1), np.where(real, lost, high)
    fewest: NDArray[np.int64] = np.maximum(low, above)
    return fewest


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
