"""The index page of a night, one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evalguard.gate_reason import GateState
from evalguard.history.report import TrendReport
from evalguard.night_report import GRAVEST_FIRST, NightReport, PairNight
from evalguard.report.html.page import html_page
from evalguard.report.html.trends import TrendFigure, trend_figure
from evalguard.report.night.document import report_link
from evalguard.report.night.words import (
    key_text,
    metric_line,
    name,
    news,
    rate,
    sigma_text,
    subject,
)
from evalguard.report.plain_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """A pair in the table, all texts."""

    state: GateState
    name: str
    reason: str
    metric: str
    sigma: str
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


def night_page(report: NightReport, trends: Sequence[TrendReport] = ()) -> str:
    """Return the page.

    Args:
        trends: of its pairs; () without a history.
    """
    state = next((state for state in GRAVEST_FIRST if report.count(state)), "passed")
    return html_page(
        "night.html",
        subject=subject(report),
        state=state,
        news=news(report),
        rows=sorted((_row(report, pair) for pair in report.pairs), key=_gravest_first),
        trends=[one for trend in trends if (one := _trends(report, trend)).figures],
        facts=list(_facts(report)),
        version=report.version,
    )


def _gravest_first(row: PairRow) -> int:
    return GRAVEST_FIRST.index(row.state)


def _row(report: NightReport, pair: PairNight) -> PairRow:
    worst = pair.worst
    sigma, low, high = ("", "", "") if worst is None else sigma_text(worst, pair.margin)
    link = report_link(report, pair.run_folder)
    return PairRow(
        state=pair.state,
        name=printable(name(pair)),
        reason=printable(pair.reason),
        metric="" if worst is None else printable(key_text(worst.key)),
        sigma=sigma,
        interval="" if worst is None or worst.low is None else f"[{low}, {high}]",
        guilty=printable(", ".join(pair.culprits) or pair.bisection),
        link=f"{link}/report.html" if link else "",
        lines=tuple(_lines(pair)),
    )


def _lines(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield printable(pair.hint)
    for metric in pair.metrics:
        yield metric_line(metric, pair.margin)
    for note in (*pair.problems, *pair.waivers, *pair.notes):
        yield printable(note)


def _trends(report: NightReport, trends: TrendReport) -> PairTrends:
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


def _facts(report: NightReport) -> Iterator[tuple[str, str]]:
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
    for note in filter(None, (*report.notes, rate(report))):
        yield "Note", printable(note)
