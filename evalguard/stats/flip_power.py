"""Power of 0/1 metrics, from the share of documents that flip between right and wrong.

psi is that share, in either direction; a drift delta is the share lost minus the share won. A
drift cannot be larger than the share that flips, so psi counts as at least delta.
"""

from __future__ import annotations

import math

from evalguard.stats.documents_needed import documents_to_show_no_loss
from evalguard.stats.power import LEAST_DRIFT, check_power
from evalguard.stats.probability import normal_quantile
from evalguard.stats.root import find_root


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
