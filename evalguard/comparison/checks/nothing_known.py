"""Metrics of which nothing is known, whatever their numbers say: failed, and never a pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from evalguard.answers.compared_generations import pair_answers
from evalguard.answers.document_figures import OF_CALLS, differing_parts
from evalguard.answers.figure_tables import read_request
from evalguard.comparison.checks.broken import BrokenAnswers, fail_broken
from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import pair_columns
from evalguard.core.figures import WHOLE_TEXT, is_figure
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate
from evalguard.core.generation_comparison import GenerationComparison
from evalguard.core.limits import OF_ANSWERS
from evalguard.core.scores import ScoreTable, Tables
from evalguard.core.settings import Value
from evalguard.engine.rescored_answers import explain_other_scores
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.finished_runs.run_facts import share_one_model
from evalguard.stats.compare_scores import fail_without_numbers, failed_comparison
from evalguard.stats.judgement import MetricComparison, judge_equal_answers
from evalguard.stats.uninformative import explain_silence, quote_side

# Log-likelihoods that differ by less are one model's: what rounding makes flips hardly any answer.
_ROUNDING = 1e-3


def doubt_equal_answers(
    compared: Sequence[MetricComparison],
    sides: tuple[ScoredSide, ScoredSide],
    tables: Sequence[ScoreTable],
) -> tuple[MetricComparison, ...]:
    """Judge metrics of equal scores by their interval, where the models are not bit-identical.

    A lossless conversion gives every document the same answers and log-likelihoods, and is
    unchanged whatever their number. Where these differ, equal scores of 0 and 1, or of another
    coarse grid (points of a rubric, F1 of short answers), leave room for a drift if documents are
    few.

    Args:
        tables: of the base.
    """
    differ: dict[str, bool] = {}
    spreads = {
        table.key: float(np.ptp(table.values))
        for table in tables
        if table.aggregation == "mean" and table.n and np.isfinite(table.values).all()
    }
    judged = []
    for metric in compared:
        comparison = metric.comparison
        if comparison.bit_identical:
            task = comparison.task
            if task not in differ:
                differ[task] = models_differ(task, sides, compared)
            metric = (
                judge_equal_answers(metric, spreads.get(comparison.key, 0.0))
                if differ[task]
                else metric
            )
        judged.append(metric)
    return tuple(judged)


def models_differ(
    task: str, sides: tuple[ScoredSide, ScoredSide], compared: Sequence[MetricComparison]
) -> bool:
    """Whether any document's answers (texts, tool calls, thinking, endings) or numbers differ.

    Where a side does not show them, only a metric of the task that is not 0/1 can say that they do
    not: by being bit-identical, too.
    """
    if not all(task in side.samples for side in sides):
        comparisons = [metric.comparison for metric in compared if metric.comparison.task == task]
        return not any(c.bit_identical and c.flips is None for c in comparisons)
    base, candidate = (side.samples[task].samples for side in sides)
    texts, asked = (pair_columns(base, candidate, name) for name in ("text", "arguments"))
    return (
        any(map(_texts_differ, *texts, asked[0]))
        or any(map(_numbers_differ, *pair_columns(base, candidate, "loglikelihood")))
        or any(differing_parts(*both) for _, *both in pair_answers(task, base, candidate))
    )


def _texts_differ(one: Value, other: Value, asked: Value) -> bool:
    if one == other or not any(text is not None for text in _values(one)):
        return False
    request = read_request(asked)
    ours, theirs = (
        [request.without_stop(text) if isinstance(text, str) else text for text in _values(side)]
        for side in (one, other)
    )
    return ours != theirs


def _numbers_differ(one: Value, other: Value) -> bool:
    return any(
        isinstance(a, float)
        and isinstance(b, float)
        and abs(a - b) > _ROUNDING
        and not math.isnan(a)
        for a, b in zip(_values(one), _values(other), strict=False)
    )


def _values(value: object) -> Iterator[object]:
    yield from value if isinstance(value, (list, tuple)) else ()


Compared = Sequence[MetricComparison]


def fail_unknown(
    compared: Compared,
    sides: tuple[ScoredSide, ScoredSide],
    *,
    gate: Gate,
    tables: tuple[Tables, Tables] = ((), ()),
    broken: Sequence[BrokenAnswers] = (),
) -> tuple[MetricComparison, ...]:
    """Fail what is no comparison of two models.

    Those are tasks whose answers in two finished runs are one model's, or nearly all broken;
    metrics that such a run scored and has no documents of; metrics that give the same answers other
    scores; and candidates whose answers say nothing where the gate does not call them regressed.

    Args:
        tables: of the base, and of the candidate.
    """
    base, candidate = sides
    checked = _fail_one_model(fail_broken(compared, broken, base.tables), base, candidate)
    checked = _fail_rescored(tuple(checked), sides, tables)
    return tuple(_fail_silent(tuple(_with_lost(tuple(checked), base, candidate)), gate))


def fail_at_zero(
    compared: Compared, sides: tuple[ScoredSide, ScoredSide], *, gate: Gate
) -> tuple[MetricComparison, ...]:
    """Fail all that is gated where no model scores above 0 in any document of any of it.

    Nothing can be lost there, so that nothing was measured, unless the two models answer alike.
    One such metric beside others that can show a loss is a finding only.
    """
    of_all = [metric.comparison for metric in compared]
    gated = set(gate.judge(of_all).gated)
    judged = [comparison for comparison in of_all if comparison.key in gated]
    if gate.limits or not judged or not all(map(_is_zero, judged)):
        return tuple(compared)
    asked = {comparison.task for comparison in judged}
    differing = {task for task in asked if models_differ(task, sides, compared)}
    return tuple(
        fail_without_numbers(
            metric.comparison,
            f"both models score 0 in all {metric.comparison.n:,} documents and answer otherwise: "
            "nothing could be lost, so that nothing was measured (take a task at which the base "
            "scores)",
        )
        if metric.comparison.key in gated and metric.comparison.task in differing
        else metric
        for metric in compared
    )


# From so few calls that are the base's on, of so many documents that call at all, nothing is known.
_FEW_CALLS, _ENOUGH_CALLING = 0.1, 8


def fail_other_calls(
    compared: Compared, generations: Sequence[GenerationComparison]
) -> Iterator[MetricComparison]:
    """A failed comparison for each task whose calls are hardly ever the base's, if nothing scores.

    Calls that are valid, and that are not cut, may still be the wrong ones: where no metric scores
    them and the gate does not hold them to the base's, nothing is known of what they do. Words
    differ of any two models; so do calls that are drawn.
    """
    scored = {
        metric.comparison.task
        for metric in compared
        if not is_figure(metric.comparison.filter, metric.comparison.metric)
        or metric.comparison.metric in (OF_CALLS, OF_ANSWERS)
    }
    for generation in generations:
        whole = generation.whole
        if whole is None or whole.drawn or generation.task in scored or not whole.calling:
            continue
        many = 2 * whole.calling >= generation.n or whole.calling >= _ENOUGH_CALLING
        if many and whole.same_calls <= _FEW_CALLS * whole.calling:
            reason = (
                f"{whole.same_calls:,} of {whole.calling:,} calls are the base's, and nothing says "
                "which are right"
            )
            failed = failed_comparison(
                (generation.task, WHOLE_TEXT, OF_CALLS), reason, n=generation.n
            )
            yield MetricComparison(comparison=failed)


# Of a candidate without answers the changes of its texts and filters tell.
_TOLD_AS_FINDINGS = ("one_answer", "flat", "constant", "at_chance")


def find_silent_candidates(
    tables: tuple[Tables, Tables], comparisons: Sequence[Comparison]
) -> tuple[Finding, ...]:
    """Say of which tasks that are worse the candidate's answers alone do not depend on the model.

    Args:
        tables: of the base, and of the candidate.
    """
    worse = {comparison.key for comparison in comparisons if comparison.outcome == "regressed"}
    ours, theirs = ({table.key: table for table in of_side} for of_side in tables)
    findings: dict[tuple[str, str], Finding] = {}
    for key, table in theirs.items():
        silent = table.uninformative
        if key not in worse or key not in ours or silent is None:
            continue
        if ours[key].uninformative is not None or silent.kind not in _TOLD_AS_FINDINGS:
            continue
        findings.setdefault(
            (table.task, silent.kind),
            Finding(
                kind="says_nothing",
                text=explain_silence(silent, table),
                task=table.task,
                values={"kind": silent.kind, "documents": silent.documents, "n": silent.n},
                quotes=quote_side(silent, "candidate"),
            ),
        )
    return tuple(findings.values())


def _is_zero(c: Comparison) -> bool:
    alike = c.bit_identical or c.flips == (0, 0)
    return c.higher_is_better and alike and c.base == 0.0 and c.candidate == 0.0


def _fail_one_model(
    compared: Compared, base: ScoredSide, candidate: ScoredSide
) -> Iterator[MetricComparison]:
    ours, theirs = base.origin, candidate.origin
    reasons: dict[str, str] = {}
    if ours is not None and theirs is not None:
        reasons = {
            task: share_one_model(ours, theirs, of.samples, candidate.samples[task].samples)
            for task, of in base.samples.items()
            if task in candidate.samples
        }
    for metric in compared:
        reason = reasons.get(metric.comparison.task, "")
        failed = metric.comparison.outcome == "failed"
        yield fail_without_numbers(metric.comparison, reason) if reason and not failed else metric


def _with_lost(
    compared: Compared, base: ScoredSide, candidate: ScoredSide
) -> Iterator[MetricComparison]:
    """Say of metrics that one side lacks where its documents are; add those of which none are."""
    lost = {**base.lost, **candidate.lost}
    reasons = {task: reason for (task, _, _), reason in lost.items()}
    for metric in compared:
        reason, comparison = reasons.get(metric.comparison.task, ""), metric.comparison
        if reason and comparison.outcome == "failed":
            yield replace(
                metric, comparison=replace(comparison, reason=f"{comparison.reason}; {reason}")
            )
        else:
            yield metric
    known = {metric.comparison.task for metric in compared}
    for key, reason in lost.items():
        if key[0] not in known:
            yield MetricComparison(comparison=failed_comparison(key, reason))


def _fail_rescored(
    compared: Compared, sides: tuple[ScoredSide, ScoredSide], tables: tuple[Tables, Tables]
) -> Iterator[MetricComparison]:
    """Fail metrics by which the same answer to the same document has two scores."""
    ours, theirs = ({table.key: table for table in of_side} for of_side in tables)
    for metric in compared:
        key, reason = metric.comparison.key, ""
        if metric.comparison.outcome != "failed" and key in ours and key in theirs:
            reason = explain_other_scores((ours[key], theirs[key]), sides)
        yield fail_without_numbers(metric.comparison, reason) if reason else metric


def _fail_silent(compared: Compared, gate: Gate) -> Iterator[MetricComparison]:
    if not any(metric.unless_regressed for metric in compared):
        yield from compared
        return
    comparisons = [metric.comparison for metric in compared]
    judged = gate.judge(comparisons)
    outcomes = {c.key: c.outcome for c in gate.with_outcomes(comparisons, judged)}
    unshown = {*judged.undecided, *(key for key, of in outcomes.items() if of != "regressed")}
    for metric in compared:
        comparison = metric.comparison
        if metric.unless_regressed and comparison.key in unshown and comparison.outcome != "failed":
            reason, quotes = metric.unless_regressed.reason, metric.unless_regressed.quotes
            yield fail_without_numbers(comparison, reason, quotes)
        else:
            yield metric
