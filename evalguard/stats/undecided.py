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
from evalguard.stats.flip_power import failing_flip_drift
from evalguard.stats.repeat_plan import FEWEST_FOR_T
from evalguard.stats.scatter import NORMAL_KURTOSIS, planned_churn, scatter_factors

_SURE = 0.7  # two-sided: of the scatter that n documents show, the end that 15% exceed
_DIGITS = 2  # of a margin that is proposed
_MOST_COUNTED = 100  # flips; of more the normal approximation says the same, and at once


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
    size, level = tolerance.drift, one_sided_level(drift.estimate.confidence)
    stderr = planned_stderr(drift, size)
    if stderr is None or not (stderr > 0.0 and math.isfinite(stderr) and math.isfinite(size)):
        return Undecided(kind=kind)
    detectable = _failing_drift(drift, size, n, level / max(metrics, 1))
    sigma = None if detectable is None else drift.sigma_of(detectable)
    unit = _fixed_unit(drift, tolerance)
    least = decidable_ratio(level, metrics) * stderr * math.sqrt(n / max(n_total, n))
    found = Undecided(
        kind=kind,
        detectable_sigma=None if sigma is None or not math.isfinite(sigma) else sigma,
        detectable_change=None if detectable is None else _metric_change(drift, detectable),
        decidable_margin=_margin_text(drift, least, unit),
    )
    fewest = fewest_documents(drift, n)
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


def planned_stderr(drift: Drift, size: float) -> float | None:
    """The standard error that a plan takes, of a margin of ``size`` on the scale of the drift.

    Of answers that of the flips that the seen ones leave open, of other documents with what a
    sample of skewed ones does not know; None where nothing can be said. ``plan`` takes the same.
    """
    if drift.flips is not None and drift.documents:
        churn = planned_churn(sum(drift.flips), drift.documents, drift=size)
        return math.sqrt(churn / drift.documents)
    if drift.planned_scatter is None:
        return None
    return drift.estimate.stderr * drift.planned_scatter


def _failing_drift(drift: Drift, size: float, n: int, level: float) -> float | None:
    """The smallest true drift that fails such a run in 80% of cases: above the margin, and real.

    None where the documents are too few, or too skewed, for a number that holds: of those a plan
    says what it takes, which errs to the safe side, and this would err to the other.
    """
    stderr = drift.estimate.stderr
    if drift.flips is not None and drift.documents:
        churn = planned_churn(sum(drift.flips), drift.documents)
        if sum(drift.flips) <= _MOST_COUNTED:
            return failing_flip_drift(churn, drift.documents, margin=size, alpha=level, power=POWER)
        stderr = math.sqrt(churn / drift.documents)
    elif drift.planned_scatter != 1.0 or n < FEWEST_FOR_T:
        return None
    else:
        stderr *= scatter_factors(n, kurtosis=NORMAL_KURTOSIS, confidence=_SURE)[1]
    quantile = drift.estimate.quantile
    return max(size, quantile(1.0 - level) * stderr) + quantile(POWER) * stderr


def fewest_documents(drift: Drift, n: int) -> int:
    """Documents of which so many differ that their signs alone can decide; 0 of answers."""
    differing = drift.estimate.differing
    if not differing or (drift.flips is not None and drift.documents):
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
    change = drift.change_of(size)
    return change if math.isfinite(change) else None
