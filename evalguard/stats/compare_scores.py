"""From paired scores to a Comparison: drift, verdict, reason and caveats of one metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Companion, Comparison
from evalguard.core.figures import FIGURES
from evalguard.core.findings import Quote
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import Margin, MetricMargin, one_sided_level
from evalguard.stats.binary import mcnemar_exact, mcnemar_mid_p, same_answers
from evalguard.stats.bootstrap import MOST_UNDEFINED
from evalguard.stats.caveats import documents_of_task, own_caveats, own_provenance
from evalguard.stats.clusters import cluster_count, cluster_sums
from evalguard.stats.drift import Drift, contributions, estimate_drift
from evalguard.stats.estimate import SIGN_FLIP, all_finite
from evalguard.stats.influence import influence
from evalguard.stats.judgement import IDENTICAL, MetricComparison, MetricJudgement, judge_metric
from evalguard.stats.sign_flip import sign_flip, wilcoxon_signed_rank
from evalguard.stats.skewness import uncorrected

NAMES = {
    "sign-flip": "the sign-flip permutation test",
    "wilcoxon": "Wilcoxon's signed-rank test",
    "mcnemar-exact": "the exact McNemar test, which takes documents as independent,",
}
_PLAIN_T = "the plain t test"
# A Monte Carlo p-value this close to the level says nothing about which side it is on.
_MONTE_CARLO_ERRORS = 3.0


def companions(paired: PairedScores, drift: Drift) -> tuple[Companion, ...]:
    """The tests beside the one that decides.

    None for 0/1 metrics: there both are McNemar's exact test once more (every difference is 1 or
    -1). None where no document differs. Where documents belong to clusters, whole clusters change
    sign, and a test that takes documents as independent stands there only for 0/1 metrics, whose
    usual test it is.
    """
    if not np.any(paired.d):
        return ()
    if paired.clusters:
        return _of_clusters(paired, drift)
    if drift.flips is not None:
        return ()
    return (sign_flip_companion(paired.d, "documents"), _wilcoxon(paired), *plain_t(drift))


def _of_clusters(paired: PairedScores, drift: Drift) -> tuple[Companion, ...]:
    tests = []
    if uncorrected(drift.estimate.method) != SIGN_FLIP:
        sums = cluster_sums(paired.d, paired.base.weights, paired.clusters)
        tests.append(sign_flip_companion(sums.values, "clusters"))
    if drift.flips is not None:
        p_value = mcnemar_exact(*drift.flips)
        note = "takes documents as independent, whatever they share"
        tests.append(Companion(method="mcnemar-exact", p_value=p_value, note=note))
    return (*tests, *plain_t(drift))


def plain_t(drift: Drift) -> tuple[Companion, ...]:
    """The t test, or that of few clusters, where a more careful one decides."""
    plain = drift.plain
    if plain is None:
        return ()
    interval = (drift.sigma_of(plain.low), drift.sigma_of(plain.high))
    return (Companion(method=plain.method, p_value=plain.p_value, sigma_interval=interval),)


def disagreements(tests: Sequence[Companion], *, real: bool, level: float) -> list[str]:
    """One sentence for each companion that sees a drift where the deciding test sees none, or not.

    Args:
        real: whether the deciding test calls the drift to the worse real.
        level: one-sided level of all tests.
    """
    sees, does = ("does not see", "does") if real else ("sees", "does not")
    return [
        f"{NAMES.get(test.method, _PLAIN_T)} {sees} a drift to the worse "
        f"(one-sided p = {test.p_value:.3g}), the deciding test {does}"
        for test in tests
        if (test.p_value <= level) != real and not _too_close(test, level)
    ]


def _too_close(test: Companion, level: float) -> bool:
    if test.resamples is None:
        return False
    error = math.sqrt(level * (1.0 - level) / test.resamples)
    return abs(test.p_value - level) <= _MONTE_CARLO_ERRORS * error


def sign_flip_companion(d: NDArray[np.float64], noun: str) -> Companion:
    """The sign-flip test of differences, float64, shape (n,), of documents or whole clusters."""
    test = sign_flip(d)
    how = "all sign patterns" if test.resamples is None else f"{test.resamples:,} random patterns"
    return Companion(
        method="sign-flip",
        p_value=test.p_value,
        resamples=test.resamples,
        seed=test.seed,
        note=f"signs of the {noun}' differences flipped: {how}",
    )


def _wilcoxon(paired: PairedScores) -> Companion:
    zeros = int(np.count_nonzero(paired.d == 0.0))
    notes = [f"{zeros:,} documents without a difference left out"] if zeros else []
    if paired.base.weights is not None:
        notes.append("documents count alike, whatever their weight")
    p_value = wilcoxon_signed_rank(paired.d)
    return Companion(method="wilcoxon", p_value=p_value, note="; ".join(notes))


# Beyond this the square of a score overflows; no log-likelihood or metric comes near it.
_LARGEST_SCORE = 1e150


def unusable(paired: PairedScores) -> str:
    """Why these scores give no number, or "".

    Fewer than two documents or clusters, NaN or infinite scores, weights that are no counts.
    """
    if paired.base.n < 2:
        return f"a standard error needs at least 2 documents, and there {_count(paired.base.n)}"
    if cluster_count(paired) == 1:
        return (
            f"all {paired.base.n:,} documents share one {paired.base.cluster_field or 'cluster'}: "
            "a standard error needs at least 2 clusters"
        )
    problems = [_unusable_scores(table) for table in (paired.base, paired.candidate)]
    problems.append(_unusable_weights(paired.base))
    return "; ".join(problem for problem in problems if problem)


def _count(documents: int) -> str:
    return "is 1" if documents == 1 else f"are {documents}"


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
            f"{int(np.sum(~usable)):,} of {table.n:,} documents have a weight that is not a "
            "count of "
            f"words or bytes (first: doc_id {table.doc_ids[first]}, {table.weights[first]!s})"
        )
    return "" if float(np.sum(table.weights)) > 0.0 else "the documents' weights sum to 0"


# Of a figure of generated answers whose base does not scatter, as one that never loops.
FIGURE_MARGIN = Margin(0.01, "points")
_NO_NUMBER = "the drift overflows double precision"
_NO_AGGREGATE = "its aggregation gives no number for these documents or for resamples of them"
_NEITHER = (
    "its aggregation gives no number for these documents, on either side (a category that it needs "
    "is missing, as a limit may leave it out)"
)


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
    identical, table = _identical(paired), paired.base
    try:
        tolerance = tolerance_of(drift, table, wanted)
    except ValueError as error:
        if gated and not identical:
            return MetricComparison(comparison=_failed(paired, str(error), confidence))
        # no drift is within any margin
        tolerance = sigma_tolerance(drift, 1.0)
        if identical:
            tolerance = replace(tolerance, margin=wanted)
    total = documents_of_task(paired)
    judged = IDENTICAL if identical else judge_metric(drift, tolerance, n=table.n, n_total=total)
    comparison, parts = _comparison(paired, drift, judged, tolerance), contributions(paired, drift)
    return MetricComparison(
        comparison=replace(
            comparison, influence=None if parts is None else influence(drift, parts)
        ),
        contributions=parts,
        drift=drift,
        tolerance=tolerance,
    )


def tolerance_of(drift: Drift, table: ScoreTable, margin: Margin) -> MetricMargin:
    """A margin beside a drift.

    Raises:
        ValueError: the metric has no such margin.
    """
    if table.distance and margin.unit == "sigma" and drift.base.stderr == 0.0:
        raise ValueError(
            f"{table.metric} is a distance from the base, whose own has no standard error: nothing "
            "says how large it may be. Give a margin in points, 1pp for 0.01 (--margin 1pp, or of "
            f"this metric alone --gate-metric {table.metric}=1pp)"
        )
    if table.figure and margin.unit == "sigma" and drift.base.stderr == 0.0:
        margin = FIGURE_MARGIN if FIGURES[table.metric].unit == "share" else margin
    falls = table.is_share and table.higher_is_better and drift.base.point > 0.0
    if falls and margin.unit == "relative" and margin.value >= 1.0:
        raise ValueError(
            f"no metric falls by more than 100%, so that a margin of {margin.text} cannot fail: "
            "give this one a smaller margin of its own"
        )
    return margin_tolerance(drift, margin, is_share=table.is_share)


def margin_tolerance(drift: Drift, margin: Margin, *, is_share: bool) -> MetricMargin:
    """A margin beside the drift of a metric that is a share by its kind, or none.

    Raises:
        ValueError: the metric has no such margin.
    """
    base = drift.base
    if margin.unit == "sigma":
        return replace(sigma_tolerance(drift, margin.value), is_share=is_share)
    amount = margin.in_metric(base.point, base.stderr, is_share=is_share)
    if amount is None or (drift.log_sign and drift.unit > 0.0):
        in_sigma = margin.in_sigma(base.point, base.stderr, is_share=is_share)
        return MetricMargin(
            margin=margin,
            sigma=in_sigma,
            amount=None,
            drift=drift.drift_of(in_sigma),
            is_share=is_share,
        )
    sized = base.stderr > 0.0 and math.isfinite(amount / base.stderr)
    return MetricMargin(
        margin=margin,
        sigma=amount / base.stderr if sized else None,
        amount=amount,
        # of a perplexity whose base does not scatter, in units of which sigma has no size
        drift=drift.drift_of_change(amount),
        is_share=is_share,
    )


def sigma_tolerance(drift: Drift, sigma: float) -> MetricMargin:
    """A margin in standard errors of the base."""
    return MetricMargin(margin=Margin(sigma), sigma=sigma, amount=None, drift=drift.drift_of(sigma))


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
    paired: PairedScores, drift: Drift, judged: MetricJudgement, tolerance: MetricMargin
) -> Comparison:
    table = paired.base
    verdict, level = judged.verdict, one_sided_level(drift.estimate.confidence)
    mid_p, exact_p = _mcnemar_p_values(drift)
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
        directed=table.directed,
        n=table.n,
        n_used=table.n,
        n_total=documents_of_task(paired),
        mid_p_value=mid_p,
        exact_p_value=exact_p,
        **drift_fields(drift, judged, tolerance),
        flips=drift.flips,
        churn=answers.churn if answers else None,
        same_answer=answers.share if answers else None,
        same_answer_interval=answers.interval if answers else None,
        clusters=cluster_count(paired),
        cluster_field=table.cluster_field if paired.clusters else "",
        companions=tests,
        caveats=_distinct(
            *_carried_caveats(paired),
            *own_caveats(paired, drift, verdict, tolerated=tolerance.drift),
            *doubts,
        ),
        provenance=provenance_of(paired),
    )


def false_alarm_of(drift: Drift, tolerance: MetricMargin) -> float:
    """The chance that an unchanged candidate crosses a margin."""
    if tolerance.amount is not None:
        return drift.chance_beyond(tolerance.drift)
    assert tolerance.sigma is not None
    return drift.false_alarm_probability(tolerance.sigma)


def _mcnemar_p_values(drift: Drift) -> tuple[float | None, float | None]:
    """Mid-p and exact p of a 0/1 metric."""
    if drift.flips is None or drift.estimate.method != "mcnemar-mid-p":
        return None, None
    return mcnemar_mid_p(*drift.flips), mcnemar_exact(*drift.flips)


def drift_fields(drift: Drift, judged: MetricJudgement, tolerance: MetricMargin) -> dict[str, Any]:
    """The fields of a comparison that say its drift, its margin, and what is judged of both."""
    estimate, verdict = drift.estimate, judged.verdict
    ends = (0.0, 0.0) if judged.bit_identical else (estimate.low, estimate.high)
    own_unit = drift.log_sign == 0 or tolerance.amount is not None
    return {
        "base": drift.base.point,
        "base_stderr": drift.base.stderr,
        "candidate": drift.candidate.point,
        "candidate_stderr": drift.candidate.stderr,
        "sigma": drift.sigma,
        "sigma_interval": judged.interval,
        "paired_stderr": drift.paired_stderr,
        "planned_scatter": drift.planned_scatter,
        "p_value": estimate.p_value,
        "method": estimate.method,
        "confidence": estimate.confidence,
        "false_alarm_probability": false_alarm_of(drift, tolerance),
        "outcome": verdict.outcome,
        "significant": verdict.significant,
        "certain": verdict.certain,
        "bit_identical": judged.bit_identical,
        "reason": judged.reason,
        "undecided": judged.undecided,
        "needed_n": None if judged.undecided is None else judged.undecided.needed_n,
        "margin": tolerance.sigma,
        "margin_text": tolerance.margin.text,
        "drift": drift.change_of(estimate.point) if own_unit else None,
        "drift_interval": (drift.change_of(ends[0]), drift.change_of(ends[1]))
        if own_unit
        else None,
        "tolerated": tolerance.amount,
    }


def _carried_caveats(paired: PairedScores) -> tuple[str, ...]:
    return _distinct(*paired.base.caveats, *paired.candidate.caveats, *paired.caveats)


def provenance_of(paired: PairedScores) -> tuple[str, ...]:
    """How both sides' scores and the comparison's numbers were made."""
    sides = (*paired.base.provenance, *paired.candidate.provenance)
    return _distinct(*sides, *own_provenance(paired))


def _distinct(*caveats: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(caveats))


def fail_without_numbers(
    comparison: Comparison, reason: str, quotes: tuple[Quote, ...] = ()
) -> MetricComparison:
    """A comparison in place of one whose numbers say nothing."""
    failed = failed_comparison(
        comparison.key,
        reason,
        higher_is_better=comparison.higher_is_better,
        n=comparison.n,
        confidence=comparison.confidence,
        caveats=comparison.caveats,
    )
    return MetricComparison(comparison=replace(failed, quotes=quotes))
