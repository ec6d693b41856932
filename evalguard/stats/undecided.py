"""Why a verdict is undecided, and what would decide it; normal approximations throughout.

With z the normal quantile at the one-sided level of the interval and z_K that at the level that the
gate asks of one of its K metrics (Bonferroni's, so that Holm asks no more), an estimate D with
standard error S and a margin m is undecided in a window of D: from m - z S (below, a drift above
the margin is excluded) to max(z, z_K) S (above, it is real). The window is z + max(z, z_K) - m / S
standard errors long, so that whatever the true drift is, at most 2 Phi(length / 2) - 1 of runs are
undecided. Where documents are added to n that are known, the part of D that is known does not
scatter anew, and the length counts by sqrt(1 - n / N).
"""

from __future__ import annotations

import math
from dataclasses import replace

from evalguard.core.comparison import (
    Margin,
    MetricMargin,
    Undecided,
    UndecidedKind,
    one_sided_level,
)
from evalguard.stats.drift import Drift
from evalguard.stats.power import fewest_signs, smallest
from evalguard.stats.probability import normal_quantile

POWER = 0.8
# The length of a window, in standard errors, that holds 20% of a normal estimate at most.
TOLERABLE = 2.0 * normal_quantile(1.0 - POWER / 2.0)
_MOST_DOCUMENTS = 10**9
_DIGITS = 2  # of a margin that is proposed


def explain_undecided(
    drift: Drift,
    *,
    n: int,
    n_total: int,
    tolerance: MetricMargin,
    metrics: int,
    above: bool,
) -> Undecided:
    """Say of an undecided metric what it lacks.

    Args:
        drift: over n documents.
        n_total: documents of the task; 0 where unknown.
        metrics: K, those that the gate judges together.
        above: whether the estimate is above the margin.
    """
    kind: UndecidedKind = "above_margin" if above else "too_few_documents"
    stderr, level = drift.estimate.stderr, one_sided_level(drift.estimate.confidence)
    size = tolerance.drift
    if not (stderr > 0.0 and math.isfinite(stderr) and math.isfinite(size)):
        return Undecided(kind=kind)
    gate_level = level / max(metrics, 1)
    window = -normal_quantile(level) - normal_quantile(gate_level)
    shown = max(size, -normal_quantile(gate_level) * stderr)
    detectable = shown + normal_quantile(POWER) * stderr
    sigma, unit = drift.sigma_of(detectable), _fixed_unit(drift, tolerance)
    least = (window - TOLERABLE) * stderr * math.sqrt(n / max(n_total, n))
    found = Undecided(
        kind=kind,
        detectable_sigma=sigma if math.isfinite(sigma) else None,
        detectable_change=_metric_change(drift, detectable),
        decidable_margin=_margin_text(drift, least, unit),
    )
    fewest = _fewest_documents(drift, n)
    fixed = tolerance.margin.unit != "sigma"
    needed = documents_to_decide(size / stderr, window, known=n, fixed=fixed)
    if needed is not None:
        return replace(found, needed_n=max(needed, fewest))
    text = "" if fixed else _margin_text(drift, size, unit)
    if not text:
        return found
    same = _drift_of_margin(drift, Margin.parse(text)) / stderr
    needed = documents_to_decide(same, window, known=n, fixed=True)
    return replace(
        found,
        fixed_margin=text,
        fixed_margin_n=None if needed is None else max(needed, fewest),
    )


def documents_to_decide(ratio: float, window: float, *, known: int, fixed: bool) -> int | None:
    """Documents, the known ones among them, after which 80% of runs are decided.

    Args:
        ratio: the margin over the paired standard error of the known documents.
        window: z + z_K, in standard errors.
        fixed: whether the margin stays what it is; else it shrinks as the standard error does.

    Returns:
        The number, above ``known``; None where no number below a billion does.
    """

    def enough(documents: int) -> bool:
        if documents <= known:
            return False
        length = window - ratio * (math.sqrt(documents / known) if fixed else 1.0)
        return length <= TOLERABLE * math.sqrt(1.0 - known / documents)

    possible = ratio > 0.0 if fixed else window - ratio < TOLERABLE
    found = smallest(enough, known + 1.0) if possible else None
    return found if found is not None and found <= _MOST_DOCUMENTS else None


def _fewest_documents(drift: Drift, n: int) -> int:
    """Documents of which so many differ that their signs alone can decide."""
    differing = drift.estimate.differing
    if not differing:
        return 0
    return math.ceil(n * fewest_signs(drift.estimate.confidence) / differing)


# A margin that does not shrink as documents are added, in the unit that people type.


def _fixed_unit(drift: Drift, tolerance: MetricMargin) -> str:
    if tolerance.is_share and not drift.log_sign:
        return "pp"
    return "%" if drift.base.point != 0.0 and math.isfinite(drift.base.point) else ""


def _margin_text(drift: Drift, size: float, unit: str) -> str:
    """A drift as a margin, rounded up; "" where it is none that a metric can have."""
    amount = _metric_change(drift, size) if unit else None
    if amount is None:
        return ""
    share = 100.0 * (amount if unit == "pp" else amount / abs(drift.base.point))
    if not 0.0 < share < (100.0 if unit == "pp" or drift.log_sign <= 0 else 1e6):
        return ""
    step = 10.0 ** (math.floor(math.log10(share)) - _DIGITS + 1)
    return f"{math.ceil(share / step - 1e-9) * step:.{_DIGITS}g}{unit}"


def _drift_of_margin(drift: Drift, margin: Margin) -> float:
    """A margin in points or percent, on the scale of the drift."""
    amount = margin.value * (1.0 if margin.unit == "points" else abs(drift.base.point))
    if not drift.log_sign:
        return amount
    return drift.drift_of(amount / drift.base.stderr)


def _metric_change(drift: Drift, size: float) -> float | None:
    """A drift to the worse in units of the metric; None beyond what doubles hold."""
    if not drift.log_sign:
        return size
    change = abs(drift.sigma_of(size)) * drift.base.stderr
    return change if math.isfinite(change) else None
