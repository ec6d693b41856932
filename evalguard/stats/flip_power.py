"""Power of 0/1 metrics, from the share of documents that flip between right and wrong.

psi is that share, in either direction; a drift delta is the share lost minus the share won. A
drift cannot be larger than the share that flips, so psi counts as at least delta.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.stats.documents_needed import documents_to_show_no_loss
from evalguard.stats.power import LEAST_DRIFT, check_power
from evalguard.stats.probability import normal_quantile
from evalguard.stats.root import find_root

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
        more, least = (special.bdtrc(np.maximum(k - 1, 0), flips, 0.5) for k in (lost + 1, lost))
        more = np.where(lost + 1 > flips, 0.0, more)
        least = np.where(lost == 0, 1.0, np.where(lost > flips, 0.0, least))
        real = (more + least) / 2.0 <= alpha
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
