"""From paired scores to a Comparison: drift, verdict, reason and caveats of one metric."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from evalguard.core.comparison import Comparison, Margin, Verdict, decide
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.stats.answers.same import same_answers
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.bootstrap import MOST_UNDEFINED
from evalguard.stats.caveats import (
    documents_of_task,
    explain,
    explain_identical,
    own_caveats,
    unusable,
)
from evalguard.stats.contributions import Contributions, contributions, influence
from evalguard.stats.drift import Drift, companions, disagreements, estimate_drift
from evalguard.stats.few_units import cluster_count
from evalguard.stats.power import documents_needed
from evalguard.stats.probability import all_finite

_NO_NUMBER = "the drift overflows double precision"
_NO_AGGREGATE = "its aggregation gives no number for these documents or for resamples of them"
_NEITHER = (
    "its aggregation gives no number for these documents, on either side (a category that it needs "
    "is missing, as a limit may leave it out)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A comparison, and what each document adds to its drift (None where no sum makes it).

    ``not_compared``: why the metric cannot be compared on these documents, whatever the models:
    then it is to be left out, and the comparison, which failed, says the same.
    """

    comparison: Comparison
    contributions: Contributions | None = None
    not_compared: str = ""


def compare_scores(
    paired: PairedScores, *, margin: float | Margin = 1.0, confidence: float = 0.95
) -> Comparison:
    """Compare two aligned score tables of one metric; see ``compare_documents``."""
    return compare_documents(paired, margin=margin, confidence=confidence).comparison


def compare_documents(
    paired: PairedScores,
    *,
    margin: float | Margin = 1.0,
    confidence: float = 0.95,
    gated: bool = True,
) -> MetricComparison:
    """Compare two aligned score tables of one metric.

    Args:
        paired: from :func:`evalguard.core.pairing.pair`.
        margin: tolerated drift; a number is in standard errors of the base.
        gated: whether the gate judges the metric. One that is only shown is held beside 1 sigma
            where it has no margin in the gate's unit.
        confidence: of the two-sided paired interval; every one-sided test beside it is at
            (1 - confidence) / 2.

    Returns:
        The comparison; with outcome "failed" and a reason where the scores give no number (fewer
        than two documents, NaN or infinite scores, weights that sum to 0).

    Raises:
        ValueError: for an impossible margin or confidence.
    """
    wanted = margin if isinstance(margin, Margin) else Margin(margin)
    check_confidence(confidence)
    problem = unusable(paired)
    if problem:
        return MetricComparison(comparison=_failed(paired, problem, confidence))
    drift = estimate_drift(paired, confidence=confidence)
    if not all_finite(drift.estimate):
        left_out = _undefined(drift, paired)
        reason = _NO_NUMBER if paired.base.rescoring is None else left_out or _NO_AGGREGATE
        return MetricComparison(
            comparison=_failed(paired, reason, confidence), not_compared=left_out
        )
    identical = _identical(paired)
    try:
        tolerated = margin_of(drift, paired.base, wanted)
    except ValueError as error:
        if gated and not identical:
            return MetricComparison(comparison=_failed(paired, str(error), confidence))
        tolerated = 1.0
        if not identical:  # no drift is within any margin
            wanted = Margin(1.0)
    judged = (
        IDENTICAL
        if identical
        else judge_metric(
            drift,
            n=paired.base.n,
            n_total=documents_of_task(paired),
            margin=tolerated,
            margin_text=wanted.text,
        )
    )
    comparison, parts = _comparison(paired, drift, judged, tolerated), contributions(paired, drift)
    carried = None if parts is None else influence(drift, parts)
    told = replace(comparison, influence=carried, margin=tolerated, margin_text=wanted.text)
    return MetricComparison(comparison=told, contributions=parts)


def margin_of(drift: Drift, table: ScoreTable, margin: Margin) -> float:
    """A margin in standard errors of the base.

    Raises:
        ValueError: the metric has no such margin.
    """
    falls = table.is_share and table.higher_is_better and drift.base.point > 0.0
    if falls and margin.unit == "relative" and margin.value >= 1.0:
        raise ValueError(
            f"no metric falls by more than 100%, so that a margin of {margin.text} cannot fail: "
            "give this one a smaller margin of its own"
        )
    return margin.in_sigma(drift.base.point, drift.base.stderr, is_share=table.is_share)


def _undefined(drift: Drift, paired: PairedScores) -> str:
    """Why a bootstrapped metric has no drift where neither model is to blame; "" where one is."""
    if paired.base.rescoring is None:
        return ""
    without = [math.isnan(side.point) for side in (drift.base, drift.candidate)]
    if all(without):
        return _NEITHER
    if any(without) or drift.undefined <= MOST_UNDEFINED:
        return ""
    return (
        f"its aggregation gives no number for {100.0 * drift.undefined:.0f}% of the resamples of "
        f"these {paired.base.n:,} documents (a category that it needs is in too few of them), so "
        "that it has no standard error; more documents give it one"
    )


def _failed(paired: PairedScores, reason: str, confidence: float) -> Comparison:
    return failed_comparison(
        paired.base, reason, confidence=confidence, caveats=_carried_caveats(paired)
    )


def failed_comparison(
    of: ScoreTable | tuple[str, str, str],
    reason: str,
    *,
    higher_is_better: bool = True,
    n: int = 0,
    confidence: float = 0.95,
    caveats: tuple[str, ...] = (),
) -> Comparison:
    """A comparison without numbers: neither a pass nor a regression.

    Args:
        of: a table of the metric, or its (task, filter, metric) where not even that exists.
        reason: what went wrong, one sentence.
        higher_is_better, n: used only where ``of`` is not a table.
    """
    if isinstance(of, ScoreTable):
        higher_is_better, n = of.higher_is_better, of.n
        of = of.key
    task, filter_name, metric = of
    return Comparison(
        task=task,
        filter=filter_name,
        metric=metric,
        higher_is_better=higher_is_better,
        n=n,
        n_used=0,
        base=None,
        base_stderr=None,
        candidate=None,
        candidate_stderr=None,
        sigma=None,
        sigma_interval=None,
        paired_stderr=None,
        p_value=None,
        method="none",
        confidence=confidence,
        false_alarm_probability=None,
        outcome="failed",
        significant=False,
        certain=False,
        bit_identical=False,
        reason=reason,
        caveats=caveats,
    )


def check_confidence(confidence: float) -> None:
    """Check the confidence of an interval.

    Raises:
        ValueError: unless it lies strictly between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence!r}")


def _identical(paired: PairedScores) -> bool:
    base, candidate = paired.base.rescoring, paired.candidate.rescoring
    if base is not None and candidate is not None:
        return base.items == candidate.items
    return bool(np.array_equal(paired.base.values, paired.candidate.values))


def _comparison(
    paired: PairedScores, drift: Drift, judged: MetricJudgement, margin: float
) -> Comparison:
    table = paired.base
    verdict, level = judged.verdict, (1.0 - drift.estimate.confidence) / 2.0
    tests = companions(paired, drift)
    doubts = disagreements(tests, real=verdict.significant, level=level)
    answers = same_answers(
        paired, binary=drift.flips is not None, confidence=drift.estimate.confidence
    )
    return Comparison(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        higher_is_better=table.higher_is_better,
        n=table.n,
        n_used=table.n,
        n_total=documents_of_task(paired),
        base=drift.base.point,
        base_stderr=drift.base.stderr,
        candidate=drift.candidate.point,
        candidate_stderr=drift.candidate.stderr,
        sigma=drift.sigma,
        sigma_interval=judged.interval,
        paired_stderr=drift.paired_stderr,
        p_value=drift.estimate.p_value,
        mid_p_value=_mid_p(drift),
        method=drift.estimate.method,
        confidence=drift.estimate.confidence,
        false_alarm_probability=drift.false_alarm_probability(margin),
        outcome=verdict.outcome,
        significant=verdict.significant,
        certain=verdict.certain,
        bit_identical=judged.bit_identical,
        reason=judged.reason,
        needed_n=judged.needed_n,
        flips=drift.flips,
        churn=answers.churn if answers else None,
        same_answer=answers.share if answers else None,
        same_answer_interval=answers.interval if answers else None,
        clusters=cluster_count(paired),
        cluster_field=table.cluster_field if paired.clusters else "",
        companions=tests,
        caveats=_distinct(
            *_carried_caveats(paired), *own_caveats(paired, drift, verdict, margin=margin), *doubts
        ),
    )


def _mid_p(drift: Drift) -> float | None:
    if drift.flips is None or drift.estimate.method != "mcnemar-exact":
        return None
    return mcnemar_mid_p(*drift.flips)


def _carried_caveats(paired: PairedScores) -> tuple[str, ...]:
    return _distinct(*paired.base.caveats, *paired.candidate.caveats, *paired.caveats)


def _distinct(*caveats: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(caveats))


# Judgement: a drift's verdict with its interval, its reason, and what would decide it.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricJudgement:
    """What a drift means for the gate.

    Attributes:
        interval: of sigma.
        needed_n: documents that would decide; None where it is decided, or none would.
    """

    verdict: Verdict
    interval: tuple[float, float]
    reason: str
    needed_n: int | None = None
    bit_identical: bool = False


# Identical scores: a lossless conversion. There is no scatter, so there is no uncertainty.
IDENTICAL = MetricJudgement(
    verdict=Verdict(outcome="unchanged", significant=False, certain=False),
    interval=(0.0, 0.0),
    reason=explain_identical(),
    bit_identical=True,
)


def judge_metric(
    drift: Drift, *, n: int, n_total: int, margin: float, margin_text: str = ""
) -> MetricJudgement:
    """Judge the drift of scores that are not all identical.

    Args:
        n: documents of the drift; ``n_total``: those there are, 0 where unknown.
        margin: tolerated drift, in standard errors of the base; ``margin_text`` as it was given.
    """
    low, high = drift.sigma_interval
    verdict = decide(drift.sigma, low, high, margin)
    needed = None
    if verdict.outcome == "undecided":
        needed = documents_needed(drift.estimate, n=n, tolerance=drift.drift_of(margin))
    reason = explain(
        drift,
        verdict,
        margin=margin,
        margin_text=margin_text,
        n=n,
        needed_n=needed,
        n_total=n_total,
    )
    return MetricJudgement(verdict=verdict, interval=(low, high), reason=reason, needed_n=needed)
