"""How many documents a question needs, and how small a drift so many can show."""

from __future__ import annotations

import math
from collections.abc import Callable

from evalguard.stats.power import smallest
from evalguard.stats.probability import normal_critical, normal_quantile

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
