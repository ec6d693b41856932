"""ReportView: everything that a page about a comparison lays out, as text that is safe to show, and
how it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalguard import tools
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.findings import quotes_text
from evalguard.core.gate import WhenUndecided
from evalguard.core.gate_state import GateState
from evalguard.core.limits import LimitState
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.distribution_section import (
    DISTRIBUTION_LEGEND,
    DistributionView,
    distribution_view,
)
from evalguard.report.distribution_texts import kl_estimate_text
from evalguard.report.first_screen import (
    Caveat,
    bisection_reason,
    cause_line,
    distributions_line,
    finding_lines,
    number_caveats,
    shows_bisection,
    stated_reason,
    stopping_texts,
    verdict_caveats,
    verdict_line,
)
from evalguard.report.floor_texts import floor_line
from evalguard.report.generation_section import (
    GENERATION_LEGEND,
    GenerationView,
    generation_views,
    generations_line,
)
from evalguard.report.limit_texts import (
    broken_lines,
    decisive_limit,
    limit_found,
    limit_label,
    limit_line,
    limit_tally,
)
from evalguard.report.meaning import Meaning, accepted_lines, derive_meaning
from evalguard.report.metric_labels import (
    GLOSSARY,
    SIGMA_UNIT,
    decisive_comparison,
    format_percent,
    full_label,
    margin_lines,
    metric_margin,
    outcome_definitions,
    select_shown,
    tally_report,
)
from evalguard.report.metric_view import (
    MetricView,
    TaskView,
    changed_answer_lines,
    influence_view,
    task_views,
)
from evalguard.report.run_costs import resources_text
from evalguard.report.side_view import SideView, flatten_entries, side_view
from evalguard.report.tracked_view import TrackedView, tracked_views

_LEGEND = f"sigma: drift in {SIGMA_UNIT}."


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
        first: the verdict in a line: state, worst metric, the gate's rule, exit code;
            ``stated``: the reason in it of a metric without a number.
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
        answers: flips and churn, of the first metrics that differ. ``stopping``: of a
            sequential run. ``floor``: the drift beside that of an unchanged model.
            ``influence``: which documents carry the drift that it is about, of the metric with
            the label ``influential``.
        limits: absolute limits. ``accepted``: what waivers let through.
        caveats: numbered, notes about the whole run last; ``notes`` are these alone.
        left_out: what was not compared, and why.
        bisection: a BisectionView; None where none is shown, with ``bisection_reason`` where one
            was expected.
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
    stated: str
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
    answers: tuple[str, ...]
    stopping: tuple[str, ...]
    floor: str
    influence: str
    influential: str
    limits: tuple[LimitView, ...]
    accepted: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]
    bisection: Any
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """An absolute limit of the gate: its state, and a line that begins with that.

    ``label`` is the figure and what it was measured on: "kl_mean on lastword"; ``found`` is the
    line without the state; ``is_first``: the first line says it. ``documents``: of broken
    ones a sentence each, with their texts.
    """

    state: LimitState
    label: str
    line: str
    found: str
    is_first: bool
    documents: tuple[str, ...] = ()


def build_report_view(report: CompareReport) -> ReportView:
    """Return everything that a page about ``report`` lays out.

    No text in it can act on a terminal or break a line, whatever names and texts of models it was
    made of.
    """
    visible, hidden = select_shown(report.comparisons)
    numbered = number_caveats(visible, report.notes)
    meaning, gate = explain_report(report), report.gate
    worst, decisive = decisive_comparison(report), decisive_limit(report)
    measured = any(not distribution.failure for distribution in report.distributions)
    return ReportView(
        title=printable(f"{report.candidate.name} against {report.base.name}"),
        state=gate.state,
        passed=gate.passed,
        exit_code=report.exit_code,
        when_undecided=gate.when_undecided,
        headline=_headline(report),
        gate=_gate_text(report),
        verdict=(
            f"{_headline(report)}; exit code {report.exit_code}{_culprits_text(report)}. "
            f"Gate: {_gate_text(report)}."
        ),
        first=verdict_line(report),
        stated=stated_reason(report),
        cause=cause_line(report),
        findings=finding_lines(report),
        spread=distributions_line(report),
        touching=verdict_caveats(report, numbered),
        sentence=meaning.sentence,
        lead=meaning.lead,
        because=meaning.answers,
        next_step=meaning.next_step,
        next_command=meaning.command,
        trace_command=meaning.trace,
        base=side_view(report.base),
        candidate=side_view(report.candidate),
        tasks=task_views(report, visible, {caveat.text: caveat.number for caveat in numbered}),
        legend=_LEGEND if visible or hidden else "",
        words=tuple(GLOSSARY.items()) + outcome_definitions(c.outcome for c in visible),
        interval_header=_interval_header(visible),
        hidden=tuple(hidden),
        distributions=tuple(
            distribution_view(report, distribution) for distribution in report.distributions
        ),
        distributions_legend=DISTRIBUTION_LEGEND if measured else "",
        kl_estimates=tuple(map(kl_estimate_text, report.kl_estimates)),
        generations=generation_views(report),
        generations_legend=GENERATION_LEGEND if report.generations else "",
        answers_change=generations_line(report),
        answers=(*margin_lines(report.comparisons), *changed_answer_lines(report)),
        stopping=tuple(stopping_texts(report)),
        floor=floor_line(report),
        influence=_influence_text(report),
        influential="" if worst is None else full_label(worst),
        limits=tuple(
            LimitView(
                state=limit.state,
                label=limit_label(limit),
                line=limit_line(limit),
                found=limit_found(limit),
                is_first=limit is decisive,
                documents=broken_lines(report, limit),
            )
            for limit in gate.limits
        ),
        accepted=tuple(accepted_lines(gate)),
        caveats=numbered,
        notes=tuple(map(printable, report.notes)),
        left_out=tuple(_left_out_lines(report)),
        bisection=_bisection_view(report),
        bisection_reason=bisection_reason(report),
        environment=flatten_entries(report.environment),
        command=printable(report.command),
        created=printable(report.created),
        version=printable(report.version),
        run_folder="" if report.run_folder is None else printable(report.run_folder),
        resources=resources_text(report.resources),
        tracked=tracked_views(report),
    )


def explain_report(report: CompareReport) -> Meaning:
    """Say what a comparison means, together with its bisection where one is shown."""
    meaning = derive_meaning(report)
    if not shows_bisection(report):
        return meaning
    explained: Meaning = tools.fetch("explain_bisection")(report, meaning)
    return explained


def _bisection_view(report: CompareReport) -> Any:
    return tools.fetch("bisection_view")(report.bisect) if shows_bisection(report) else None


def _culprits_text(report: CompareReport) -> str:
    """Of the line with the exit code, "" where none is named."""
    return tools.fetch("culprits_text")(report.bisect) if shows_bisection(report) else ""


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
    if worst is None or worst.outcome != "regressed":
        return ""
    influence = influence_view(worst, metric_margin(report, worst))
    return (
        "" if influence is None else f"Documents that carry {full_label(worst)}: {influence.text}"
    )


def _left_out_lines(report: CompareReport) -> list[str]:
    lines = []
    for left_out in report.not_compared:
        name = printable(f"{left_out.task} {left_out.metric}".strip())
        if left_out.filter not in ("", "none"):
            name += printable(f" ({left_out.filter})")
        reason = printable(f"{left_out.reason}{quotes_text(left_out.quotes)}")
        lines.append(f"Not compared: {name}: {reason}")
    return lines
