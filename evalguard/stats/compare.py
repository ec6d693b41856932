"""From paired scores to a Comparison: drift, verdict, reason and caveats of one metric."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evalguard.comparison import Comparison
from evalguard.pairing import PairedScores
from evalguard.scores import ScoreTable
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.companions import companions, disagreements
from evalguard.stats.drift import Drift, estimate_drift
from evalguard.stats.estimate import all_finite
from evalguard.stats.planning import documents_needed
from evalguard.stats.reason import explain, explain_identical
from evalguard.stats.tails import skewness, worst_documents
from evalguard.verdict import Verdict, check_margin, decide

# Beyond this the square of a score overflows; no log-likelihood or metric comes near it.
_LARGEST_SCORE = 1e150
_UNCHANGED = Verdict(outcome="unchanged", significant=False, certain=False)


def compare_scores(
    paired: PairedScores, *, margin: float = 1.0, confidence: float = 0.95
) -> Comparison:
    """Compare two aligned score tables of one metric.

    Args:
        paired: from :func:`evalguard.pairing.pair`.
        margin: tolerated drift, in standard errors of the base.
        confidence: of the two-sided paired interval; every one-sided test beside it is at
            (1 - confidence) / 2.

    Returns:
        The comparison; with outcome "failed" and a reason where the scores give no number (fewer
        than two documents, NaN or infinite scores, weights that sum to 0).

    Raises:
        ValueError: for an impossible margin or confidence.
    """
    check_margin(margin)
    check_confidence(confidence)
    problem = _problem(paired)
    if problem:
        return failed_comparison(
            paired.base, problem, confidence=confidence, caveats=_carried_caveats(paired)
        )
    drift = estimate_drift(paired, confidence=confidence)
    if not all_finite(drift.estimate):
        return failed_comparison(
            paired.base,
            "the drift overflows double precision",
            confidence=confidence,
            caveats=_carried_caveats(paired),
        )
    if bool(np.array_equal(paired.base.values, paired.candidate.values)):
        judged = _judge_identical()
    else:
        judged = _judge(drift, paired, margin)
    return _comparison(paired, drift, judged, margin)


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
        higher_is_better, n: used only where ``of`` is no table.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judgement:
    verdict: Verdict
    interval: tuple[float, float]
    reason: str
    needed_n: int | None = None
    bit_identical: bool = False


def _judge(drift: Drift, paired: PairedScores, margin: float) -> _Judgement:
    low, high = drift.sigma_interval
    verdict = decide(drift.sigma, low, high, margin)
    n = paired.base.n
    needed = None
    if verdict.outcome == "undecided":
        needed = documents_needed(drift.estimate, n=n, tolerance=drift.drift_of(margin))
    reason = explain(
        drift, verdict, margin=margin, n=n, needed_n=needed, n_total=_documents_of_task(paired)
    )
    return _Judgement(verdict=verdict, interval=(low, high), reason=reason, needed_n=needed)


def _judge_identical() -> _Judgement:
    """Identical scores: a lossless conversion. There is no scatter, so there is no uncertainty."""
    return _Judgement(
        verdict=_UNCHANGED, interval=(0.0, 0.0), reason=explain_identical(), bit_identical=True
    )


def _comparison(
    paired: PairedScores, drift: Drift, judged: _Judgement, margin: float
) -> Comparison:
    table = paired.base
    verdict, level = judged.verdict, (1.0 - drift.estimate.confidence) / 2.0
    tests = companions(paired, drift)
    doubts = disagreements(tests, real=verdict.significant, level=level)
    return Comparison(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        higher_is_better=table.higher_is_better,
        n=table.n,
        n_used=table.n,
        base=drift.base.point,
        base_stderr=drift.base.stderr,
        candidate=drift.candidate.point,
        candidate_stderr=drift.candidate.stderr,
        sigma=drift.sigma,
        sigma_interval=judged.interval,
        paired_stderr=drift.paired_stderr,
        p_value=drift.estimate.p_value,
        mid_p_value=None if drift.flips is None else mcnemar_mid_p(*drift.flips),
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
        companions=tests,
        caveats=_distinct(
            *_carried_caveats(paired), *_own_caveats(paired, drift, verdict), *doubts
        ),
    )


def _problem(paired: PairedScores) -> str:
    """Why these scores give no number, or ""."""
    if paired.base.n < 2:
        return f"a standard error needs at least 2 documents, and there are {paired.base.n}"
    problems = [_unusable_scores(table) for table in (paired.base, paired.candidate)]
    problems.append(_unusable_weights(paired.base))
    return "; ".join(problem for problem in problems if problem)


def _unusable_scores(table: ScoreTable) -> str:
    usable = np.abs(table.values) <= _LARGEST_SCORE  # False for NaN too
    if bool(np.all(usable)):
        return ""
    first = int(np.argmin(usable))
    return (
        f"{int(np.sum(~usable)):,} of {table.n:,} documents of {table.source or 'a run'} have NaN "
        f"or infinite scores (first: doc_id {table.doc_ids[first]}, {table.values[first]!s})"
    )


def _unusable_weights(table: ScoreTable) -> str:
    if table.weights is None:
        return ""
    usable = (table.weights >= 0.0) & (table.weights <= _LARGEST_SCORE)
    if not bool(np.all(usable)):
        first = int(np.argmin(usable))
        return (
            f"{int(np.sum(~usable)):,} of {table.n:,} documents have a weight that is no count of "
            f"words or bytes (first: doc_id {table.doc_ids[first]}, {table.weights[first]!s})"
        )
    return "" if float(np.sum(table.weights)) > 0.0 else "the documents' weights sum to 0"


def _own_caveats(paired: PairedScores, drift: Drift, verdict: Verdict) -> list[str]:
    table, caveats = paired.base, []
    total = _documents_of_task(paired)
    if table.n < total:
        caveats.append(f"only {table.n:,} of the task's {total:,} documents were scored")
    if table.weights is not None:
        caveats.append(
            "lm-eval reports no standard error here; it is computed by the ratio estimator over "
            f"{table.n:,} documents"
        )
    for name, moments in (("base", drift.base), ("candidate", drift.candidate)):
        if math.isinf(moments.point):
            caveats.append(f"the {name}'s {table.metric} overflows and counts as infinite")
    return [*caveats, *_doubts(paired, drift, verdict)]


def _doubts(paired: PairedScores, drift: Drift, verdict: Verdict) -> list[str]:
    """What stands in the way of reading a t interval as it says."""
    if drift.flips is not None or not np.any(paired.d):
        return []
    d, n = paired.d, paired.base.n
    if drift.estimate.stderr == 0.0:
        return [f"all {n:,} documents drift alike: nothing scatters, and the interval is a point"]
    doubts = []
    tail = worst_documents(d)
    if tail.heavy and verdict.outcome != "unchanged":
        doubts.append(
            f"heavy tails: the {tail.count:,} most affected of {n:,} documents carry "
            f"{100.0 * tail.share:.0f}% of the total drift (normal scatter would give them "
            f"{100.0 * tail.normal_share:.0f}%)"
        )
    skew = skewness(d, paired.base.weights)
    if skew.needed > n:
        side = "above" if skew.value > 0.0 else "below"
        doubts.append(
            f"skewed differences: the true drift lies {side} the interval more often than it says "
            f"(skewness {skew.value:.1f} asks for {math.ceil(skew.needed):,} documents, "
            f"here {n:,})"
        )
    return doubts


def _documents_of_task(paired: PairedScores) -> int:
    return max(paired.base.n_total, paired.candidate.n_total)


def _carried_caveats(paired: PairedScores) -> tuple[str, ...]:
    return _distinct(*paired.base.caveats, *paired.candidate.caveats, *paired.caveats)


def _distinct(*caveats: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(caveats))
