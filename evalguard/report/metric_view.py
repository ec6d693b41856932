"""MetricView: one metric of base and candidate, rounded as its standard error supports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Companion, Comparison, InfluentialDocument, Outcome
from evalguard.core.gate_state import GateState
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import (
    drift_cells,
    drift_size,
    format_percent,
    full_label,
    is_said_ungated,
    metric_label,
    metric_margin,
    outcome_words,
    select_shown,
    shown_interval,
)

_MOST_SHOWN = 6


def changed_answer_lines(report: CompareReport) -> list[str]:
    """Return a sentence per metric whose answers both runs show, unless they are all the same."""
    differing = [c for c in report.comparisons if changed_answers_text(c)]
    in_table, _ = select_shown(report.comparisons)
    chosen = [c for c in in_table if c in differing][:_MOST_SHOWN]
    lines = [f"Answers, {full_label(c)}: {changed_answers_text(c)}." for c in chosen]
    remaining = len(differing) - len(chosen)
    return [*lines, f"Answers of {remaining} more metrics: see --json."] if remaining > 0 else lines


def changed_answers_text(comparison: Comparison) -> str:
    """Return flips, churn and the share of equal answers; "" if unknown, or if all are alike."""
    if comparison.same_answer in (None, 1.0):
        return ""
    low, high = comparison.same_answer_interval or (0.0, 1.0)
    quarter = 100.0 * (high - low) / 4.0
    share, least, most = (
        rounding.round_to_error(100.0 * number, quarter)
        for number in (comparison.same_answer or 0.0, low, high)
    )
    same = f"the same in {share}% of documents [{least}%, {most}%]"
    if comparison.flips is None:
        return same
    lost, won = (rounding.format_count(number) for number in comparison.flips)
    flips = f"{lost} lost, {won} won"
    if comparison.churn is not None:
        flips += f", {rounding.format_count(comparison.churn)} wrong in another way"
    return f"{flips}; {same}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstDocument:
    """A document that moves a drift most; ``sigma`` is its part, as text and as ``number``."""

    task: str
    doc_id: int
    sigma: str
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceView:
    """How a drift spreads over documents.

    Attributes:
        text: all of it; ``carried`` without the names of documents.
        moved: documents whose score differs at all; ``half`` the fewest that make up half of all
            change; ``removed`` the most influential 1%, without which sigma is ``without``.
        worst: the largest contributions, largest first.
    """

    text: str
    carried: str
    moved: str
    half: str
    removed: str
    without: str
    worst: tuple[WorstDocument, ...]


def influence_view(comparison: Comparison, margin: float) -> InfluenceView | None:
    """Return how a metric's drift spreads; None where that is not known."""
    influence = comparison.influence
    if influence is None:
        return None
    without, _, _ = rounding.format_sigma_interval(influence.sigma_without, None, margin=margin)
    half, removed = rounding.format_count(influence.half), rounding.format_count(influence.removed)
    worst = tuple(map(_worst_document, influence.documents))
    own = printable(comparison.task)
    shown = ", ".join(
        f"{'' if entry.task == own else f'{entry.task} '}{entry.doc_id} ({entry.sigma} sigma)"
        for entry in worst
    )
    top = "the top one" if influence.removed == 1 else f"the top {removed}"
    noun = "document" if len(worst) == 1 else "documents"
    carried = (
        f"half of the change comes from {half} of {rounding.format_count(comparison.n_used)}; "
        f"without {top}, "
        f"sigma is {without}."
    )
    return InfluenceView(
        text=f"{carried} Largest: {noun} {shown}.",
        carried=carried,
        moved=rounding.format_count(influence.moved),
        half=half,
        removed=removed,
        without=without,
        worst=worst,
    )


def _worst_document(document: InfluentialDocument) -> WorstDocument:
    return WorstDocument(
        task=printable(document.task),
        doc_id=document.doc_id,
        sigma=f"{document.contribution:+.2g}",
        number=document.contribution,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotNumbers:
    """A sigma with its paired interval and the margin, as numbers; None: there is none to draw.

    They may be infinite.
    """

    sigma: float | None
    low: float | None
    high: float | None
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricView:
    """One row of the table of metrics.

    Attributes:
        label: "perplexity", with the filter where it has a name; ``full_label`` with the task.
        base, candidate: the two values, with as many digits as both support; the ``_with_stderr``
            beside them each with its own standard error.
        sigma: with a sign, "0" for bit-identical scores; where the base does not scatter, the drift
            in points ("+50.0pp"), or "-". ``low`` and ``high`` of its interval at ``confidence``,
            "" without one; ``size`` the drift with its unit.
        gate_state: what it brought about, None where the gate does not judge it.
        shown: False for a subtask that did not drift, which a page may leave out.
        caveats: numbers in the report's list; ``remarks`` the texts of its own caveats.
        answers: flips and churn in words, "" where the runs do not show answers.
        tests: of the other tests beside the one that gives ``p``, (name, p, note).
    """

    task: str
    label: str
    full_label: str
    metric: str
    filter: str
    higher_is_better: bool
    n: str
    n_used: str
    base: str
    candidate: str
    base_with_stderr: str
    candidate_with_stderr: str
    sigma: str
    size: str
    low: str
    high: str
    confidence: str
    p: str
    false_alarm: str
    outcome: Outcome
    said: str
    said_ungated: bool
    gate_state: GateState | None
    bit_identical: bool
    shown: bool
    reason: str
    method: str
    caveats: tuple[int, ...]
    remarks: tuple[str, ...]
    answers: str
    tests: tuple[tuple[str, str, str], ...]
    clusters: str
    influence: InfluenceView | None
    plot: PlotNumbers

    @property
    def interval(self) -> str:
        """ "[1.92, 3.48]", or what stands in its place."""
        if self.bit_identical:
            return "bit-identical"
        return f"[{self.low}, {self.high}]" if self.low or self.high else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task: ``size`` is "2,048 documents", for a group also in how many subtasks."""

    name: str
    size: str
    metrics: tuple[MetricView, ...]


def task_views(
    report: CompareReport,
    visible: Sequence[Comparison],
    numbers: Mapping[str, int],
) -> tuple[TaskView, ...]:
    """Return every task with its metrics, in the report's order.

    Args:
        visible: comparisons that a page shows at least.
        numbers: of caveats, by their text.
    """
    in_table = {id(comparison) for comparison in visible}
    by_task: dict[str, list[Comparison]] = {}
    for comparison in report.comparisons:
        by_task.setdefault(comparison.task, []).append(comparison)
    return tuple(
        TaskView(
            name=printable(task),
            size=_task_size(comparisons),
            metrics=tuple(_metric_view(report, c, id(c) in in_table, numbers) for c in comparisons),
        )
        for task, comparisons in by_task.items()
    )


def _task_size(comparisons: Sequence[Comparison]) -> str:
    sizes = sorted({comparison.n for comparison in comparisons})
    shown = rounding.format_count(sizes[0])
    if len(sizes) > 1:
        shown += f" to {rounding.format_count(sizes[-1])}"
    noun = "document" if shown == "1" else "documents"
    below = len(comparisons[0].subtasks)
    within = f" in {below} subtask{'' if below == 1 else 's'}" if below else ""
    return f"{shown} {noun}{within}"


def _metric_view(
    report: CompareReport, c: Comparison, shown: bool, numbers: Mapping[str, int]
) -> MetricView:
    key, margin = c.key, metric_margin(report, c)
    pair = rounding.round_pair((c.base, c.base_stderr), (c.candidate, c.candidate_stderr))
    sigma, low, high = drift_cells(report, c)
    texts = (*c.caveats, *c.provenance)
    remarks = tuple(dict.fromkeys(printable(text).strip() for text in texts))
    return MetricView(
        task=printable(c.task),
        label=metric_label(c),
        full_label=full_label(c),
        metric=printable(c.metric),
        filter=printable(c.filter),
        higher_is_better=c.higher_is_better,
        n=rounding.format_count(c.n),
        n_used=rounding.format_count(c.n_used),
        base=pair[0],
        candidate=pair[1],
        base_with_stderr=rounding.format_with_stderr(c.base, c.base_stderr),
        candidate_with_stderr=rounding.format_with_stderr(c.candidate, c.candidate_stderr),
        sigma="0" if c.bit_identical else sigma,
        size="0 sigma" if c.bit_identical else drift_size(report, c),
        low="" if c.sigma_interval is None else low,
        high="" if c.sigma_interval is None else high,
        confidence=format_percent(c.confidence),
        p=rounding.format_p_value(c.p_value),
        false_alarm=rounding.format_p_value(c.false_alarm_probability),
        outcome=c.outcome,
        said=outcome_words(report, c),
        said_ungated=is_said_ungated(report, c),
        gate_state=report.gate.state_of(key) if key in report.gate.gated else None,
        bit_identical=c.bit_identical,
        shown=shown,
        reason=printable(c.quoted_reason),
        method=printable(c.method),
        caveats=tuple(numbers[text] for text in remarks if text in numbers),
        remarks=remarks,
        answers=changed_answers_text(c),
        tests=tuple(map(_test_texts, c.companions)),
        clusters=_clusters_text(c),
        influence=influence_view(c, margin),
        plot=_plot_numbers(c, margin),
    )


def _test_texts(test: Companion) -> tuple[str, str, str]:
    return printable(test.method), rounding.format_p_value(test.p_value), printable(test.note)


def _clusters_text(comparison: Comparison) -> str:
    if comparison.clusters is None:
        return ""
    by = f" by {printable(comparison.cluster_field)}" if comparison.cluster_field else ""
    return f"{rounding.format_count(comparison.clusters)} clusters{by}"


def _plot_numbers(comparison: Comparison, margin: float) -> PlotNumbers:
    low, high = shown_interval(comparison) or (None, None)
    return PlotNumbers(
        sigma=_number_or_none(comparison.sigma),
        low=_number_or_none(low),
        high=_number_or_none(high),
        margin=margin,
    )


def _number_or_none(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number
