"""How many documents a question needs, and how small a drift so many can show."""

from __future__ import annotations

import math

from evalguard.stats.estimate import Estimate
from evalguard.stats.probability import normal_critical, normal_quantile

_MOST_DOCUMENTS = 10**9


def documents_needed(estimate: Estimate, *, n: int, tolerance: float) -> int | None:
    """Documents after which, at the same margin, the drift would be known as real or harmless.

    Point and scatter per document are taken to stay as they are. Over n' documents both standard
    errors shrink by sqrt(n / n'), the base's too, and the drift that a margin in sigmas tolerates
    shrinks with it: relative to it the interval stays as wide as it is, while the point moves away
    from 0. The rule decides as soon as the interval leaves 0 (the drift is real), or, for a point
    below 0, as soon as it ends below the tolerance:

        point > 0:  sqrt(n' / n) > ratio = z stderr / point
        point < 0:  sqrt(n' / n) > ratio = (z stderr - tolerance) / |point|

    The t quantile of small samples, z + (z^3 + z) / 4 df, costs a few documents more: to first
    order (z^2 + 1) / 2 times the ratio of the interval to what of it must shrink.

    Args:
        estimate: the drift over n documents, undecided.
        tolerance: margin * SE_base at the present n, in the drift's unit.

    Returns:
        The number, above n; None where no number of documents would do (a point of 0 stays 0
        however many documents show it, in an interval that stays wider than the margin), or none
        below a billion.
    """
    z = normal_critical(estimate.confidence)
    point, half = estimate.point, z * estimate.stderr
    if point == 0.0 or not (math.isfinite(point) and math.isfinite(half)):
        return None
    width = half / abs(point)
    ratio = max(1.0, width if point > 0.0 else (half - tolerance) / abs(point))
    needed = n * (ratio * ratio) + (z * z + 1.0) / 2.0 * width / ratio
    if estimate.differing:
        needed = max(needed, n * fewest_signs(estimate.confidence) / estimate.differing)
    return max(n + 1, math.ceil(needed)) if needed <= _MOST_DOCUMENTS else None


def documents_for_level(n: int, p_value: float, level: float) -> int | None:
    """Documents after which a drift that stays what it is has a one-sided p-value of ``level``.

    The statistic grows with the root of the documents: n (z_level / z_p)^2.

    Returns:
        The number, above n; None for a drift that points the other way, or beyond a billion.
    """
    if not 0.0 < p_value < 0.5:
        return None
    ratio = normal_quantile(level) / normal_quantile(p_value)
    needed = n * ratio * ratio
    return max(n + 1, math.ceil(needed)) if needed <= _MOST_DOCUMENTS else None


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
