"""Judgement: a drift's verdict with its interval, its reason, and what would decide it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evalguard.core.comparison import Comparison, Undecided
from evalguard.core.verdict import MetricMargin, Verdict, decide, one_sided_level
from evalguard.stats.answers.uninformative import NothingKnown
from evalguard.stats.binary import tango_interval
from evalguard.stats.contributions import Contributions
from evalguard.stats.drift import Drift
from evalguard.stats.explanation import explain, explain_equal_scores, explain_identical
from evalguard.stats.undecided import explain_undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A comparison, and what it was made from.

    Attributes:
        contributions: what each document adds to its drift; None where no sum makes it.
        not_compared: why the metric cannot be compared on these documents, whatever the models:
            then it is to be left out, and the comparison, which failed, says the same.
        drift, tolerance: what was judged, and by which margin; None where it failed, and where it
            was stopped early.
        unless_regressed: why nothing is known of the candidate unless the gate calls it regressed;
            None where something is.
    """

    comparison: Comparison
    contributions: Contributions | None = None
    not_compared: str = ""
    drift: Drift | None = None
    tolerance: MetricMargin | None = None
    unless_regressed: NothingKnown | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricJudgement:
    """What a drift means for the gate.

    Attributes:
        interval: of sigma.
        undecided: what an undecided verdict lacks; None for any other.
    """

    verdict: Verdict
    interval: tuple[float, float]
    reason: str
    undecided: Undecided | None = None
    bit_identical: bool = False


# Identical scores: a lossless conversion. There is no scatter, so there is no uncertainty.
IDENTICAL = MetricJudgement(
    verdict=Verdict(outcome="unchanged", significant=False, certain=False),
    interval=(0.0, 0.0),
    reason=explain_identical(),
    bit_identical=True,
)


def judge_metric(drift: Drift, tolerance: MetricMargin, *, n: int, n_total: int) -> MetricJudgement:
    """Judge the drift of scores that are not all identical, as the only metric of its gate.

    Args:
        n: documents of the drift; ``n_total``: those there are, 0 where unknown.
    """
    estimate, sigma_interval = drift.estimate, drift.sigma_interval
    if tolerance.amount is not None:
        point, low, high = map(drift.change_of, (estimate.point, estimate.low, estimate.high))
        verdict = decide(point, low, high, tolerance.amount)
    else:
        assert tolerance.sigma is not None
        verdict = decide(drift.sigma, *sigma_interval, tolerance.sigma)
    lacks = None
    if verdict.outcome == "undecided":
        lacks = explain_undecided(
            drift, n=n, n_total=n_total, tolerance=tolerance, metrics=1, above=False
        )
    reason = explain(drift, verdict, tolerance, n=n)
    return MetricJudgement(verdict=verdict, interval=sigma_interval, reason=reason, undecided=lacks)


def judge_equal_answers(one: MetricComparison, spread: float = 0.0) -> MetricComparison:
    """Judge a metric of equal scores, whose answers are not equal, by its interval.

    Without a change among n documents Tango's interval ends at z^2 / (n + z^2): of 0 and 1, that is
    the drift; of other scores on a coarse grid it is the share of documents that may change, each
    by at most their spread. Unchanged where that is below the margin; undecided where it is not,
    and where the margin has no size: of a base that is right in all documents, or in none, one in
    sigma has none. Any other metric has an interval without width, and is unchanged.

    Args:
        spread: between the lowest and the highest score of a metric that is a mean; 0 of any other.
    """
    told, drift, margin = one.comparison, one.drift, one.tolerance
    if drift is None or margin is None or (told.flips is None and not spread):
        alike = replace(told, bit_identical=False, reason=explain_equal_scores())
        return replace(one, comparison=alike)
    if not drift.documents:
        units = told.n_used if told.clusters is None else told.clusters
        low, high = tango_interval(0, 0, units, confidence=drift.estimate.confidence)
        scale = 1.0 if told.flips is not None else spread
        estimate = replace(
            drift.estimate, low=low * scale, high=high * scale, interval_method="tango-score"
        )
        drift = replace(drift, estimate=estimate)
        one = replace(one, drift=drift)
    judged = judge_metric(drift, margin, n=told.n_used, n_total=told.n_total)
    comparison = replace(
        told,
        sigma_interval=judged.interval,
        outcome=judged.verdict.outcome,
        bit_identical=False,
        reason=judged.reason,
        undecided=judged.undecided,
        needed_n=None if judged.undecided is None else judged.undecided.needed_n,
        drift_interval=(drift.estimate.low, drift.estimate.high),
    )
    return replace(one, comparison=comparison)


def complete_verdict(
    one: MetricComparison, *, holm_p_value: float | None, metrics: int
) -> Comparison:
    """A comparison with the outcome that the gate left it, and what that outcome needs to be read.

    An undecided one says what it lacks; one that Holm's procedure keeps from being real shows the
    interval that holds 0.

    Args:
        holm_p_value: None for a metric that is not gated.
        metrics: that the gate judges together.
    """
    told, drift, tolerance = one.comparison, one.drift, one.tolerance
    if drift is None or tolerance is None or told.bit_identical:
        return told
    gated = holm_p_value is not None
    adjusted = None
    if gated and told.significant and told.outcome in ("undecided", "unchanged"):
        adjusted = _adjusted_interval(drift, holm_p_value or 0.0)
    if told.outcome != "undecided":
        return replace(told, adjusted_interval=adjusted, undecided=None, needed_n=None)
    lacks = explain_undecided(
        drift,
        n=told.n_used,
        n_total=told.n_total,
        tolerance=tolerance,
        metrics=metrics if gated else 1,
        above=_is_above(told, tolerance),
    )
    return replace(told, adjusted_interval=adjusted, undecided=lacks, needed_n=lacks.needed_n)


def _is_above(told: Comparison, tolerance: MetricMargin) -> bool:
    if tolerance.amount is not None and told.drift is not None:
        return told.drift > tolerance.amount
    assert tolerance.sigma is not None
    return told.sigma is not None and told.sigma > tolerance.sigma


def _adjusted_interval(drift: Drift, holm_p_value: float) -> tuple[float, float]:
    """The interval of sigma at the level that Holm's procedure asks of this metric.

    The half widths of the metric's own interval, in the ratio of the two quantiles, of Student's t
    where that made it; its lower end is at most 0, since the adjusted p-value is above the level.
    """
    estimate = drift.estimate
    level = one_sided_level(estimate.confidence)
    asked = level * min(1.0, estimate.p_value / holm_p_value) if holm_p_value > 0.0 else level
    quantile = estimate.quantile
    wider = quantile(asked) / quantile(level) if asked > 0.0 else math.inf
    low = estimate.point - (estimate.point - estimate.low) * wider
    high = estimate.point + (estimate.high - estimate.point) * wider
    return drift.sigma_of(min(low, 0.0)), drift.sigma_of(high)
