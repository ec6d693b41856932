"""Why a verdict is undecided, and what would decide it; see ``documents_to_decide``."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from evalguard.core.comparison import Undecided, UndecidedKind
from evalguard.core.verdict import MetricMargin, one_sided_level
from evalguard.stats.documents_needed import (
    POWER,
    decidable_ratio,
    documents_to_decide,
    fewest_signs,
)
from evalguard.stats.drift import Drift
from evalguard.stats.probability import normal_critical, normal_quantile

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
    stderr, level = _stderr(drift), one_sided_level(drift.estimate.confidence)
    size = tolerance.drift
    if not (stderr > 0.0 and math.isfinite(stderr) and math.isfinite(size)):
        return Undecided(kind=kind)
    shown = max(size, -normal_quantile(level / max(metrics, 1)) * stderr)
    detectable = shown + normal_quantile(POWER) * stderr
    sigma, unit = drift.sigma_of(detectable), _fixed_unit(drift, tolerance)
    least = decidable_ratio(level, metrics) * stderr * math.sqrt(n / max(n_total, n))
    found = Undecided(
        kind=kind,
        detectable_sigma=sigma if math.isfinite(sigma) else None,
        detectable_change=_metric_change(drift, detectable),
        decidable_margin=_margin_text(drift, least, unit),
    )
    fewest = _fewest_documents(drift, n)
    fixed = tolerance.margin.unit != "sigma"
    decide = partial(documents_to_decide, size / stderr, known=n, alpha=level, metrics=metrics)
    needed = decide(fixed=fixed)
    if needed is not None:
        return replace(found, needed_n=max(needed, fewest))
    text = "" if fixed else _margin_text(drift, size, unit)
    if not text:
        return found
    needed = decide(fixed=True)
    return replace(
        found,
        fixed_margin=text,
        fixed_margin_n=None if needed is None else max(needed, fewest),
    )


def _stderr(drift: Drift) -> float:
    """The paired standard error; of answers that of their flips alone, as a plan has it.

    Without a flip it is what the end of Tango's interval comes to. Where documents are too skewed
    for t, the one that the wider interval would have by t: half of
    that interval in normal quantiles.
    """
    estimate = drift.estimate
    if drift.flips == (0, 0) and drift.documents:
        return estimate.high / normal_critical(estimate.confidence)
    if drift.flips is not None and drift.documents:
        return math.sqrt(sum(drift.flips)) / drift.documents
    if drift.plain is None:
        return estimate.stderr
    half = (estimate.high - estimate.low) / 2.0
    return max(estimate.stderr, half / normal_critical(estimate.confidence))


def _fewest_documents(drift: Drift, n: int) -> int:
    """Documents of which so many differ that their signs alone can decide."""
    differing = drift.estimate.differing
    if not differing:
        return 0
    return math.ceil(n * fewest_signs(drift.estimate.confidence) / differing)


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


def _metric_change(drift: Drift, size: float) -> float | None:
    """A drift to the worse in units of the metric; None beyond what doubles hold."""
    if not drift.log_sign:
        return size
    change = abs(drift.sigma_of(size)) * drift.base.stderr
    return change if math.isfinite(change) else None
