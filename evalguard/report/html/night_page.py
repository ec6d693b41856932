"""The index page of a night, one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.gate_state import GateState
from evalguard.core.reports.history_report import TrendReport
from evalguard.core.reports.night_report import GRAVEST_FIRST, NightReport, PairNight
from evalguard.report.html.html_page import html_page
from evalguard.report.html.trend_figures import TrendFigure, trend_figure
from evalguard.report.words.night_news import (
    change_point_error_text,
    metric_key_text,
    night_drift_texts,
    night_metric_line,
    night_news,
    night_subject,
    pair_name,
    pair_problems,
    report_link,
)
from evalguard.report.words.plain_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """A pair in the table, all texts."""

    state: GateState
    name: str
    reason: str
    metric: str
    drift: str
    interval: str
    guilty: str
    link: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTrends:
    """The trends of a pair; ``unfolded`` where there is something to see in them."""

    name: str
    points: str
    unfolded: bool
    figures: tuple[TrendFigure, ...]


def render_night_page(report: NightReport, trends: Sequence[TrendReport] = ()) -> str:
    """Return the page.

    Args:
        trends: of its pairs; () without a history.
    """
    state = next((state for state in GRAVEST_FIRST if report.count(state)), "passed")
    return html_page(
        "night.html",
        subject=night_subject(report),
        state=state,
        news=night_news(report),
        rows=sorted((_pair_row(report, pair) for pair in report.pairs), key=_gravity_order),
        trends=[one for trend in trends if (one := _pair_trends(report, trend)).figures],
        facts=list(_night_facts(report)),
        version=report.version,
    )


def _gravity_order(row: PairRow) -> int:
    return GRAVEST_FIRST.index(row.state)


def _pair_row(report: NightReport, pair: PairNight) -> PairRow:
    worst = pair.worst
    drift, low, high = ("", "", "") if worst is None else night_drift_texts(worst, pair.margin)
    link = report_link(report, pair.run_folder)
    return PairRow(
        state=pair.state,
        name=printable(pair_name(pair)),
        reason=printable(pair.reason),
        metric="" if worst is None else printable(metric_key_text(worst.key)),
        drift=drift,
        interval=f"[{low}, {high}]" if low else "",
        guilty=printable(", ".join(pair.culprits) or pair.bisection),
        link=f"{link}/report.html" if link else "",
        lines=tuple(_pair_lines(pair)),
    )


def _pair_lines(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield printable(pair.hint)
    for metric in pair.metrics:
        yield night_metric_line(metric, pair.margin)
    found = (one.line for one in pair.findings)
    for note in (*pair_problems(pair), *pair.waivers, *found, *pair.notes):
        yield printable(note)


def _pair_trends(report: NightReport, trends: TrendReport) -> PairTrends:
    figures = (trend_figure(trend) for trend in trends.trends)
    sound = any(
        pair.pair == (trends.base, trends.candidate) and pair.state == "passed"
        for pair in report.pairs
    )
    points = sum(len(trend.scan.points) for trend in trends.trends)
    return PairTrends(
        name=printable(f"{trends.candidate} against {trends.base}"),
        points=f"{points:,} change point{'' if points == 1 else 's'}",
        unfolded=points > 0 or not sound,
        figures=tuple(figure for figure in figures if figure is not None),
    )


def _night_facts(report: NightReport) -> Iterator[tuple[str, str]]:
    facts = (
        ("Guard file", report.guard),
        ("Began", report.created),
        ("Finished", report.finished),
        ("Night before", report.previous),
        ("History", report.history),
        ("Exit code", str(report.exit_code)),
        ("Command", report.command),
    )
    for what, value in facts:
        if value:
            yield what, printable(value)
    for note in filter(None, (*report.notes, change_point_error_text(report))):
        yield "Note", printable(note)
