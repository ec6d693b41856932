"""From a finished comparison to the view that all pages lay out."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.report import rounding
from evalguard.report.accepted import accepted_lines
from evalguard.report.across_tasks import across_text
from evalguard.report.answers import answer_lines
from evalguard.report.bisect_meaning import culprits_text, whole_meaning
from evalguard.report.floor_words import floor_line
from evalguard.report.limits import limit_found, limit_label, limit_line, limit_tally
from evalguard.report.plain_text import printable
from evalguard.report.resources import resources_text
from evalguard.report.stopping import stopping_texts
from evalguard.report.subtasks import shown
from evalguard.report.tracked_words import tracked_views
from evalguard.report.view.bisection import bisection_view
from evalguard.report.view.caveats import caveats
from evalguard.report.view.distribution import LEGEND as DISTRIBUTIONS_LEGEND
from evalguard.report.view.distribution import distribution_view
from evalguard.report.view.influence import influence_view
from evalguard.report.view.metric import task_views
from evalguard.report.view.report import LimitView, ReportView
from evalguard.report.view.screen import (
    cause_line,
    distributions_line,
    touching_caveats,
    verdict_line,
)
from evalguard.report.view.side import entries, side_view
from evalguard.report.wording import (
    full_label,
    margin_lines,
    margin_of,
    margin_text,
    percent,
    subject,
    tallies,
)

_LEGEND = "sigma: drift in standard errors of the base; above 0 the candidate is worse."


def report_view(report: CompareReport) -> ReportView:
    """Return everything that a page about ``report`` lays out.

    No text in it can act on a terminal or break a line, whatever names and texts of models it was
    made of.
    """
    visible, hidden = shown(report.comparisons)
    numbered = caveats(visible, report.notes)
    said, gate = whole_meaning(report), report.gate
    measured = any(not one.failure for one in report.distributions)
    return ReportView(
        title=printable(f"{report.candidate.name} against {report.base.name}"),
        state=gate.state,
        passed=gate.passed,
        exit_code=report.exit_code,
        headline=_headline(report),
        gate=_gate(report),
        verdict=(
            f"{_headline(report)}; exit code {report.exit_code}{culprits_text(report)}. "
            f"Gate: {_gate(report)}."
        ),
        first=verdict_line(report),
        cause=cause_line(report),
        spread=distributions_line(report),
        touching=touching_caveats(report, numbered),
        sentence=said.sentence,
        lead=said.lead,
        because=said.answers,
        next_step=said.next_step,
        next_command=said.command,
        base=side_view(report.base),
        candidate=side_view(report.candidate),
        tasks=task_views(report, visible, {caveat.text: caveat.number for caveat in numbered}),
        legend=_LEGEND if visible or hidden else "",
        interval_header=_interval_header(visible),
        hidden=tuple(hidden),
        distributions=tuple(distribution_view(report, one) for one in report.distributions),
        distributions_legend=DISTRIBUTIONS_LEGEND if measured else "",
        across=across_text(report),
        answers=(*margin_lines(report.comparisons), *answer_lines(report)),
        stopping=tuple(stopping_texts(report)),
        floor=floor_line(report),
        influence=_influence(report),
        limits=tuple(
            LimitView(
                state=one.state,
                label=limit_label(one),
                line=limit_line(one),
                found=limit_found(one),
            )
            for one in gate.limits
        ),
        accepted=tuple(accepted_lines(gate)),
        caveats=numbered,
        notes=tuple(map(printable, report.notes)),
        left_out=tuple(_left_out(report)),
        bisection=bisection_view(report.bisect),
        bisection_reason=printable(report.bisect_reason),
        environment=entries(report.environment),
        command=printable(report.command),
        created=printable(report.created),
        version=printable(report.version),
        run_folder="" if report.run_folder is None else printable(report.run_folder),
        resources=resources_text(report.resources),
        tracked=tracked_views(report),
    )


# A rule that fails so many unchanged candidates says little by itself, however large sigma is.
_OFTEN = 0.1


def _headline(report: CompareReport) -> str:
    gate = report.gate
    return f"{gate.state.upper()}: {tallies(report)}{limit_tally(gate.limits)}"


def _gate(report: CompareReport) -> str:
    gate = report.gate
    alarm = _false_alarm(gate.family_false_alarm, gate.family_false_alarm_estimate)
    margin = f"{margin_text(gate.margin)} sigma"
    if gate.margin_text and not gate.margin_text.endswith(" sigma"):
        margin = printable(gate.margin_text)
    return f"margin {margin}, fail on {printable(gate.fail_on)}{alarm}"


def _false_alarm(at_most: float | None, estimate: float | None) -> str:
    chance = at_most if estimate is None else estimate
    text = rounding.p_value(chance)
    if text == "-":
        return ""
    word = "at most about" if estimate is None else "about"
    bound = f"below {text[2:]}" if text.startswith("<") else f"{word} {text.lstrip('> ')}"
    if chance is not None and chance >= _OFTEN:
        return (
            "; a candidate that is unchanged on average but scatters like this would fail it with "
            f"probability {bound}, so that p has to say whether this one is worse"
        )
    return f"; an unchanged candidate would fail it with probability {bound}"


def _interval_header(comparisons: Sequence[Comparison]) -> str:
    levels = {c.confidence for c in comparisons}
    return f"{percent(levels.pop())} interval" if len(levels) == 1 else "interval"


def _influence(report: CompareReport) -> str:
    """What carries the drift that the report is about, "" if that is no regression."""
    worst = subject(report)
    found = None if worst is None else influence_view(worst, margin_of(report, worst))
    if worst is None or worst.outcome != "regressed" or found is None:
        return ""
    return f"Documents that carry {full_label(worst)}: {found.text}"


def _left_out(report: CompareReport) -> list[str]:
    lines = []
    for left_out in report.not_compared:
        name = printable(f"{left_out.task} {left_out.metric}".strip())
        if left_out.filter not in ("", "none"):
            name += printable(f" ({left_out.filter})")
        lines.append(f"Not compared: {name}: {printable(left_out.reason)}")
    return lines
