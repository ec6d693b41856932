"""MetricView: one metric of base and candidate, rounded as its standard error supports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.compare_report import CompareReport
from evalguard.comparison import Companion, Comparison, Outcome
from evalguard.gate_reason import GateState
from evalguard.report import rounding
from evalguard.report.answers import answer_text
from evalguard.report.plain_text import printable
from evalguard.report.view.influence import InfluenceView, influence_view
from evalguard.report.wording import (
    full_label,
    margin_of,
    metric_label,
    outcome_words,
    percent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
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
        sigma: with a sign, "0" for bit-identical scores; ``low`` and ``high`` of its interval at
            ``confidence``, "" without one.
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
    low: str
    high: str
    confidence: str
    p: str
    false_alarm: str
    outcome: Outcome
    said: str
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
    plot: Plot

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
            size=_size(found),
            metrics=tuple(_metric(report, c, id(c) in in_table, numbers) for c in found),
        )
        for task, found in by_task.items()
    )


def _size(comparisons: Sequence[Comparison]) -> str:
    sizes = sorted({comparison.n for comparison in comparisons})
    shown = rounding.count(sizes[0])
    if len(sizes) > 1:
        shown += f" to {rounding.count(sizes[-1])}"
    noun = "document" if shown == "1" else "documents"
    below = len(comparisons[0].subtasks)
    within = f" in {below} subtask{'' if below == 1 else 's'}" if below else ""
    return f"{shown} {noun}{within}"


def _metric(
    report: CompareReport, c: Comparison, shown: bool, numbers: Mapping[str, int]
) -> MetricView:
    key, margin = c.key, margin_of(report, c)
    pair = rounding.rounded_pair((c.base, c.base_stderr), (c.candidate, c.candidate_stderr))
    sigma, low, high = rounding.sigma_with_interval(c.sigma, c.sigma_interval, margin=margin)
    remarks = tuple(dict.fromkeys(printable(caveat).strip() for caveat in c.caveats))
    return MetricView(
        task=printable(c.task),
        label=metric_label(c),
        full_label=full_label(c),
        metric=printable(c.metric),
        filter=printable(c.filter),
        higher_is_better=c.higher_is_better,
        n=rounding.count(c.n),
        n_used=rounding.count(c.n_used),
        base=pair[0],
        candidate=pair[1],
        base_with_stderr=rounding.with_stderr(c.base, c.base_stderr),
        candidate_with_stderr=rounding.with_stderr(c.candidate, c.candidate_stderr),
        sigma="0" if c.bit_identical else sigma,
        low="" if c.sigma_interval is None else low,
        high="" if c.sigma_interval is None else high,
        confidence=percent(c.confidence),
        p=rounding.p_value(c.p_value),
        false_alarm=rounding.p_value(c.false_alarm_probability),
        outcome=c.outcome,
        said=outcome_words(report, c),
        gate_state=report.gate.state_of(key) if key in report.gate.gated else None,
        bit_identical=c.bit_identical,
        shown=shown,
        reason=printable(c.reason),
        method=printable(c.method),
        caveats=tuple(numbers[text] for text in remarks if text in numbers),
        remarks=remarks,
        answers=answer_text(c),
        tests=tuple(map(_test, c.companions)),
        clusters=_clusters(c),
        influence=influence_view(c, margin),
        plot=_plot(c, margin),
    )


def _test(test: Companion) -> tuple[str, str, str]:
    return printable(test.method), rounding.p_value(test.p_value), printable(test.note)


def _clusters(comparison: Comparison) -> str:
    if comparison.clusters is None:
        return ""
    return (
        f"{rounding.count(comparison.clusters)} clusters by {printable(comparison.cluster_field)}"
    )


def _plot(comparison: Comparison, margin: float) -> Plot:
    low, high = comparison.sigma_interval or (None, None)
    return Plot(
        sigma=_number(comparison.sigma), low=_number(low), high=_number(high), margin=margin
    )


def _number(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number
