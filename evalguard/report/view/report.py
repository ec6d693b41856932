"""ReportView: everything that a page about a comparison lays out, as text that is safe to show, and
how it is made.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    Percentile,
    TokenPosition,
)
from evalguard.core.gate import WhenUndecided
from evalguard.core.gate_state import GateState
from evalguard.core.limits import LimitState
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.tracked_run import Sent, tracker_title
from evalguard.report.view.bisection import BisectionView, bisection_view
from evalguard.report.view.generations import (
    GENERATION_LEGEND,
    GenerationView,
    generation_views,
    generations_line,
)
from evalguard.report.view.metric import (
    MetricView,
    TaskView,
    changed_answer_lines,
    influence_view,
    task_views,
)
from evalguard.report.view.screen import (
    Caveat,
    cause_line,
    distributions_line,
    finding_lines,
    number_caveats,
    verdict_caveats,
    verdict_line,
)
from evalguard.report.view.side import SideView, flatten_entries, side_view
from evalguard.report.words import rounding
from evalguard.report.words.costs import resources_text, stopping_texts
from evalguard.report.words.drift import (
    across_text,
    distribution_failure_text,
    floor_line,
    kl_bounds_text,
    kl_estimate_text,
    kl_text,
    percentile_text,
    share_text,
    unmoved_perplexity_text,
)
from evalguard.report.words.gate import (
    accepted_lines,
    broken_lines,
    limit_found,
    limit_label,
    limit_line,
    limit_tally,
)
from evalguard.report.words.glossary import GLOSSARY, SIGMA_UNIT, outcome_definitions
from evalguard.report.words.labels import (
    decisive_comparison,
    format_percent,
    full_label,
    margin_lines,
    metric_margin,
    select_shown,
    tally_report,
)
from evalguard.report.words.meaning import culprits_text, meaning_with_bisection
from evalguard.report.words.plain_text import printable

_LEGEND = f"sigma: drift in {SIGMA_UNIT}."


def build_report_view(report: CompareReport) -> ReportView:
    """Return everything that a page about ``report`` lays out.

    No text in it can act on a terminal or break a line, whatever names and texts of models it was
    made of.
    """
    visible, hidden = select_shown(report.comparisons)
    numbered = number_caveats(visible, report.notes)
    said, gate = meaning_with_bisection(report), report.gate
    measured = any(not one.failure for one in report.distributions)
    return ReportView(
        title=printable(f"{report.candidate.name} against {report.base.name}"),
        state=gate.state,
        passed=gate.passed,
        exit_code=report.exit_code,
        when_undecided=gate.when_undecided,
        headline=_headline(report),
        gate=_gate_text(report),
        verdict=(
            f"{_headline(report)}; exit code {report.exit_code}{culprits_text(report)}. "
            f"Gate: {_gate_text(report)}."
        ),
        first=verdict_line(report),
        cause=cause_line(report),
        findings=finding_lines(report),
        spread=distributions_line(report),
        touching=verdict_caveats(report, numbered),
        sentence=said.sentence,
        lead=said.lead,
        because=said.answers,
        next_step=said.next_step,
        next_command=said.command,
        trace_command=said.trace,
        base=side_view(report.base),
        candidate=side_view(report.candidate),
        tasks=task_views(report, visible, {caveat.text: caveat.number for caveat in numbered}),
        legend=_LEGEND if visible or hidden else "",
        words=tuple(GLOSSARY.items()) + outcome_definitions(c.outcome for c in visible),
        interval_header=_interval_header(visible),
        hidden=tuple(hidden),
        distributions=tuple(distribution_view(report, one) for one in report.distributions),
        distributions_legend=DISTRIBUTION_LEGEND if measured else "",
        kl_estimates=tuple(map(kl_estimate_text, report.kl_estimates)),
        generations=generation_views(report),
        generations_legend=GENERATION_LEGEND if report.generations else "",
        answers_change=generations_line(report),
        across=across_text(report),
        answers=(*margin_lines(report.comparisons), *changed_answer_lines(report)),
        stopping=tuple(stopping_texts(report)),
        floor=floor_line(report),
        influence=_influence_text(report),
        limits=tuple(
            LimitView(
                state=one.state,
                label=limit_label(one),
                line=limit_line(one),
                found=limit_found(one),
                documents=broken_lines(report, one),
            )
            for one in gate.limits
        ),
        accepted=tuple(accepted_lines(gate)),
        caveats=numbered,
        notes=tuple(map(printable, report.notes)),
        left_out=tuple(_left_out_lines(report)),
        bisection=bisection_view(report.bisect),
        bisection_reason=printable(report.bisect_reason),
        environment=flatten_entries(report.environment),
        command=printable(report.command),
        created=printable(report.created),
        version=printable(report.version),
        run_folder="" if report.run_folder is None else printable(report.run_folder),
        resources=resources_text(report.resources),
        tracked=tracked_views(report),
    )


# A rule that fails so many unchanged candidates says little by itself, however large sigma is.
_FREQUENT_FALSE_ALARM = 0.1


def _headline(report: CompareReport) -> str:
    gate = report.gate
    return f"{gate.state.upper()}: {tally_report(report)}{limit_tally(gate.limits)}"


def _gate_text(report: CompareReport) -> str:
    gate = report.gate
    alarm = _false_alarm_text(gate.family_false_alarm, gate.family_false_alarm_estimate)
    return f"{printable(gate.rule)}{alarm}"


def _false_alarm_text(at_most: float | None, estimate: float | None) -> str:
    chance = at_most if estimate is None else estimate
    text = rounding.format_p_value(chance)
    if text == "-":
        return ""
    word = "at most about" if estimate is None else "about"
    bound = f"below {text[2:]}" if text.startswith("<") else f"{word} {text.lstrip('> ')}"
    if chance is not None and chance >= _FREQUENT_FALSE_ALARM:
        return (
            "; a candidate that is unchanged on average but scatters like this would fail it with "
            f"probability {bound}, so that p has to say whether this one is worse"
        )
    return f"; an unchanged candidate would fail it with probability {bound}"


def _interval_header(comparisons: Sequence[Comparison]) -> str:
    levels = {c.confidence for c in comparisons}
    return f"{format_percent(levels.pop())} interval" if len(levels) == 1 else "interval"


def _influence_text(report: CompareReport) -> str:
    """What carries the drift that the report is about, "" if that is not a regression."""
    worst = decisive_comparison(report)
    found = None if worst is None else influence_view(worst, metric_margin(report, worst))
    if worst is None or worst.outcome != "regressed" or found is None:
        return ""
    return f"Documents that carry {full_label(worst)}: {found.text}"


def _left_out_lines(report: CompareReport) -> list[str]:
    lines = []
    for left_out in report.not_compared:
        name = printable(f"{left_out.task} {left_out.metric}".strip())
        if left_out.filter not in ("", "none"):
            name += printable(f" ({left_out.filter})")
        lines.append(f"Not compared: {name}: {printable(left_out.reason)}")
    return lines


# ReportView: everything that a page about a comparison lays out, as text that is safe to show.


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """An absolute limit of the gate: its state, and a line that begins with that.

    ``label`` is the figure and what it was measured on: "kl_mean on lastword"; ``found`` is the
    line without the state. ``documents``: of broken ones a sentence each, with their texts.
    """

    state: LimitState
    label: str
    line: str
    found: str
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """A comparison as texts: rounded by its standard errors, without a character that acts.

    No text holds a control, bidirectional, invisible or unencodable character or a line break;
    markup is not escaped, that is each renderer's own. A text is "" (a tuple ()) where there is
    nothing to say.

    Attributes:
        title: "fla-port against orig".
        state: what the gate says, ``passed`` whether it lets the candidate through;
            ``when_undecided`` what it does where nothing is decided.
        headline: "REGRESSED: 4 regressed, 3 undecided".
        gate: "a metric fails above 1 sigma if ...; an unchanged candidate would ...".
        verdict: headline, exit code, culprits and gate as one paragraph.
        first: the verdict in a line: state, worst metric, the gate's rule, exit code.
        cause: the culprits and what is left without them; or why no setting was searched for.
        findings: what every reader must see, a sentence each.
        spread: how far the distributions are apart, in a line.
        touching: those of the caveats that bear on the verdict.
        sentence: what it all means, ``lead`` without what a bisection adds to it, which is
            ``because``; ``next_step`` without a full stop, and its ``next_command``;
            ``trace_command`` looks inside the model.
        words: what each word of a verdict means, with the outcomes that its table has.
        tasks: with all their metrics; ``legend`` of their table; ``interval_header`` says what
            interval sigma has; ``hidden`` about subtasks that ``shown`` is False of.
        distributions: one per task, with ``distributions_legend``. ``kl_estimates``: a sentence
            for each task whose KL servers' most probable tokens bound from below.
        generations: one per task that generates, with ``generations_legend``; ``answers_change``
            says in a line what changed in their form.
        across: all metrics together. ``answers``: flips and churn, of the first metrics that
            differ. ``stopping``: of a sequential run. ``floor``: the drift beside that of an
            unchanged model. ``influence``: which documents carry the drift that it is about.
        limits: absolute limits. ``accepted``: what waivers let through.
        caveats: numbered, notes about the whole run last; ``notes`` are these alone.
        left_out: what was not compared, and why.
        bisection: None where there was none, with ``bisection_reason`` where one was expected.
        environment: (name, value). ``resources``: what it took. ``tracked``: what became of it
            at experiment trackers.
    """

    title: str
    state: GateState
    passed: bool
    exit_code: int
    when_undecided: WhenUndecided
    headline: str
    gate: str
    verdict: str
    first: str
    cause: str
    findings: tuple[str, ...]
    spread: str
    touching: tuple[Caveat, ...]
    sentence: str
    lead: str
    because: tuple[str, ...]
    next_step: str
    next_command: str
    trace_command: str
    base: SideView
    candidate: SideView
    tasks: tuple[TaskView, ...]
    legend: str
    words: tuple[tuple[str, str], ...]
    interval_header: str
    hidden: tuple[str, ...]
    distributions: tuple[DistributionView, ...]
    distributions_legend: str
    kl_estimates: tuple[str, ...]
    generations: tuple[GenerationView, ...]
    generations_legend: str
    answers_change: str
    across: str
    answers: tuple[str, ...]
    stopping: tuple[str, ...]
    floor: str
    influence: str
    limits: tuple[LimitView, ...]
    accepted: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]
    bisection: BisectionView | None
    bisection_reason: str
    environment: tuple[tuple[str, str], ...]
    command: str
    created: str
    version: str
    run_folder: str
    resources: str
    tracked: tuple[TrackedView, ...]

    @property
    def metrics(self) -> tuple[MetricView, ...]:
        """The metrics of all tasks."""
        return tuple(metric for task in self.tasks for metric in task.metrics)


# DistributionView: how far the candidate's next-token distributions are from the base's.


DISTRIBUTION_LEGEND = (
    "KL: divergence of the candidate from the base, nats a token; Δp: change in the scored "
    "token's probability; top-1: tokens where both have the same most probable one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionView:
    """One row of the table of distributions; ``kl`` and its percentiles in nats a token.

    Attributes:
        known: whether there are numbers; ``sentences`` says why not, and what else is to be said.
        percentiles: (percent, KL as text, KL as a finite number or None), ascending.
        largest_at: where the largest KL is, "" where unknown.
        figures: further (name, text).
    """

    task: str
    known: bool
    positions: str
    kl: str
    kl_p99: str
    kl_max: str
    dp_rms: str
    same_top1: str
    bit_identical: bool
    percentiles: tuple[tuple[float, str, float | None], ...]
    largest_at: str
    figures: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    remarks: tuple[str, ...]


def distribution_view(report: CompareReport, one: DistributionComparison) -> DistributionView:
    """Return one task's distributions as texts."""
    sentences = (
        distribution_failure_text(one),
        kl_bounds_text(one),
        unmoved_perplexity_text(report, one),
    )
    return DistributionView(
        task=printable(one.task),
        known=not one.failure,
        positions=rounding.format_count(one.positions),
        kl="0 bit-identical" if one.bit_identical else kl_text(one.kl),
        kl_p99=percentile_text(one.kl_at(99.0)),
        kl_max=percentile_text(one.kl_at(100.0)),
        dp_rms=_figure_text(one.dp_rms),
        same_top1=share_text(one.same_top1),
        bit_identical=one.bit_identical,
        percentiles=tuple(map(_percentile_texts, one.kl_percentiles)),
        largest_at=_place_text(one.kl_max_at),
        figures=_figures(one),
        sentences=tuple(sentence for sentence in sentences if sentence),
        remarks=tuple(map(printable, one.caveats)),
    )


def _figures(one: DistributionComparison) -> tuple[tuple[str, str], ...]:
    found = (
        ("mean Δp", kl_text(one.dp)),
        (f"shared of the top {one.top_k}", share_text(one.same_topk)),
        ("perplexity, base", kl_text(one.base_perplexity)),
        ("perplexity, candidate", kl_text(one.candidate_perplexity)),
        ("perplexity ratio", kl_text(one.perplexity_ratio)),
        ("correlation", "-" if one.correlation is None else f"{one.correlation:.4g}"),
        ("Δp lowest at", _place_text(one.dp_min_at)),
    )
    return tuple((name, text) for name, text in found if text not in ("", "-"))


def _figure_text(figure: Figure) -> str:
    return rounding.round_to_error(figure.value, figure.stderr)


def _percentile_texts(one: Percentile) -> tuple[float, str, float | None]:
    value = one.figure.value
    finite = value if value is not None and math.isfinite(value) else None
    return one.percent, percentile_text(one.figure), finite


def _place_text(place: TokenPosition | None) -> str:
    if place is None:
        return ""
    return f"document {place.doc_id}, request {place.request}, position {place.position}"


# What became of a run at the trackers, in words.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedView:
    """One tracker: where the run is, or why not, and the command that sends it ("" if none)."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}\n  {self.command}" if self.command else self.text


def tracked_views(report: CompareReport) -> tuple[TrackedView, ...]:
    """Return what became of the run, one for each tracker, safe to show."""
    return tuple(tracked_view(sent, report.run_folder) for sent in report.tracked)


def tracked_view(sent: Sent, folder: str | None) -> TrackedView:
    """Return what became of a run at one tracker; ``folder`` is the run's, if it has one."""
    title, command = tracker_title(sent.sink), sent.next_command
    if sent.state == "sent":
        return TrackedView(text=printable(f"{title}: {sent.place}"))
    where = "kept offline" if sent.state == "offline" else "not sent"
    why = f" ({sent.reason})" if sent.reason else ""
    if sent.state == "failed" and folder and not command:
        command = f"evalguard track {shlex.quote(folder)} --track {sent.sink}"
    text = f"{title}: {where}{why}" + ("; to send it:" if command else "")
    return TrackedView(text=printable(text), command=printable(command))
