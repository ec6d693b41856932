"""Trends of a history in a terminal: what changed, and when, in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from evalguard.core.reports.history_report import (
    Change,
    Trend,
    TrendReport,
)
from evalguard.report.history_runs import format_time
from evalguard.report.table import Table
from evalguard.report.terminal_page import next_lines, wrap_prose
from evalguard.report.text_plot import draw_sparkline, plot_trend
from evalguard.report.words.metric_labels import format_percent, key_label
from evalguard.report.words.plain_text import fit_text, printable
from evalguard.report.words.rounding import (
    format_count,
    format_drift,
    format_with_stderr,
    p_value_phrase,
)
from evalguard.stats.series.levels import ChangePoint

_MOST_PLOTS = 2
_SPARK_WIDTH, _SIGMA_WIDTH = 24, 16
_MOST_NAMED = 4
_MOST_LINES, _MOST_NOTES = 6, 2


def trend_blocks(report: TrendReport, width: int, *, verbose: bool = False) -> Iterator[list[Text]]:
    """What changed, then a plot of one metric or a line for each; of many, those that changed.

    With ``verbose`` there is a line for each, a plot for one or two, and all change points.
    """
    pair = f"{printable(report.candidate)} against {printable(report.base)}"
    found = sum(len(trend.scan.points) for trend in report.trends)
    answer = f"{found} change point{'' if found == 1 else 's'}" if found else "No change point"
    yield wrap_prose(
        f"{answer}: {pair}, {_drift_name(report.trends)} over nights", width, style="bold"
    )
    notes = [block for trend in report.trends for block in _note_blocks(trend, width)]
    if verbose:
        yield from notes
    else:
        more = len(notes) - _MOST_NOTES
        rest = wrap_prose(f"and {more} more metrics with a note (-v)" if more > 0 else "", width)
        yield [*(line for block in notes[:_MOST_NOTES] for line in block), *rest]
    if len(report.trends) <= (_MOST_PLOTS if verbose else 1):
        for trend in report.trends:
            yield [Text(fit_text(_title(trend), width), style="bold"), *plot_trend(trend, width)]
    else:
        trends = list(report.trends)
        if not verbose:
            trends = sorted(trends, key=_news_order)[:_MOST_LINES]
        more = len(report.trends) - len(trends)
        rest = wrap_prose(f"and {more} more trends (-v)" if more else "", width)
        yield [*_trend_lines(trends, width), *rest]
    yield [
        *wrap_prose(trend_error_text(report), width, style="dim"),
        *wrap_prose(f"History: {printable(report.file)}", width, style="dim"),
        *(_next_lines(report, width) if found else []),
    ]


def _drift_name(trends: Sequence[Trend]) -> str:
    """ "sigma", or "drift" where one of the trends is in another unit."""
    return "sigma" if all(trend.unit == "sigma" for trend in trends) else "drift"


def _next_lines(report: TrendReport, width: int) -> list[Text]:
    """The command that shows the documents behind the latest change, of the first that has one."""
    trend = next(trend for trend in report.trends if trend.scan.points)
    at = trend.scan.points[-1].position
    before, after = (trend.nights[trend.used[place]].run.number for place in (at - 1, at))
    words = ["evalguard", "history", "flips", str(before), str(after), "--base", report.base]
    words += ["--cand", report.candidate, "--history", report.file]
    command = shlex.join(map(printable, words))
    return next_lines("to see which documents changed", command, width)


def _news_order(trend: Trend) -> tuple[int, float]:
    """Sorts trends with change points to the front, then the largest drift."""
    sigma = trend.nights[-1].metric.sigma
    return -len(trend.scan.points), -(sigma if sigma is not None and sigma == sigma else 0.0)


def _trend_lines(trends: Sequence[Trend], width: int) -> Iterator[Text]:
    room = max(width - _SPARK_WIDTH - _SIGMA_WIDTH - 4, 12)
    rows = [
        [fit_text(key_label(*trend.key), room), draw_sparkline(trend, _SPARK_WIDTH), _latest(trend)]
        for trend in trends
    ]
    yield from Table(headings=["", " " * _SPARK_WIDTH, ""], rows=rows, leaving=()).lines(width)[1:]


def _title(trend: Trend) -> str:
    nights = format_count(len(trend.nights))
    noun = "night" if len(trend.nights) == 1 else "nights"
    return f"{key_label(*trend.key)}: {nights} {noun}, the latest {_latest(trend)}"


def _latest(trend: Trend) -> str:
    metric = trend.nights[-1].metric
    drift, stderr = metric.drift_in(trend.unit)
    return metric.outcome if drift is None else format_drift(drift, stderr, trend.unit)


def change_sentences(trend: Trend) -> list[str]:
    """What is said of each change point."""
    return [
        f"{_change_text(trend, point)}{_cause_text(changes)}"
        for point, changes in zip(trend.scan.points, trend.changes, strict=True)
    ]


def _note_blocks(trend: Trend, width: int) -> Iterator[list[Text]]:
    """What changed, and which nights could not be used."""
    label = key_label(*trend.key)
    lines: list[Text] = []
    for point, said in zip(trend.scan.points, change_sentences(trend), strict=True):
        style = "red" if point.step > 0 else "green"
        lines += wrap_prose(f"{label}: {said}", width, style=style)
    left_out = len(trend.nights) - len(trend.used)
    if left_out:
        verb = "has" if left_out == 1 else "have"
        lines += wrap_prose(
            f"{label}: {format_count(left_out)} of {format_count(len(trend.nights))} nights "
            f"{verb} no finite "
            f"{_drift_name([trend])} and are left out",
            width,
        )
    if lines:
        yield lines


def _change_text(trend: Trend, point: ChangePoint) -> str:
    runs = [trend.nights[place].run for place in trend.used]
    run, first, last = (runs[at] for at in (point.position, point.earliest, point.latest))
    within = "" if first == last else f"; 95%: {first.number} to {last.number}"
    way = "worse" if point.step > 0 else "better"
    before = format_with_stderr(point.before.mean, point.before.stderr)
    after = format_with_stderr(point.after.mean, point.after.stderr)
    step = format_with_stderr(abs(point.step), point.stderr)
    return (
        f"{way} by {step} {trend.unit} from run {run.number} on "
        f"({format_time(run.created)[:10]}{within}): "
        f"{before} before, {after} since ({p_value_phrase(point.p_value)})"
    )


def _cause_text(changes: tuple[Change, ...]) -> str:
    if not changes:
        return "; nothing else that is kept changed there"
    told = [
        f"{printable(change.what)} {printable(change.before)} -> {printable(change.after)} in run "
        f"{change.run}"
        for change in changes[:_MOST_NAMED]
    ]
    more = f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return f"; changed there: {', '.join(told)}{more}"


def trend_error_text(report: TrendReport) -> str:
    """How many change points there are, and the chance of a false one."""
    several = len(report.trends) > 1
    among = f"among these {format_count(len(report.trends))} trends" if several else "in this trend"
    found = sum(len(trend.scan.points) for trend in report.trends)
    points = "no change point" if not found else f"{found} change point{'s' if found > 1 else ''}"
    looks = f" in {format_count(report.looks)} answers like this" if report.looks > 1 else ""
    return (
        f"{points}; the chance of any false one {among}{looks} is at most "
        f"{format_percent(report.alpha)} (permutation scan{_alike_text(report)})"
    )


def _alike_text(report: TrendReport) -> str:
    """What nights that follow each other mean for that chance."""
    correlation = max((trend.scan.correlation for trend in report.trends), default=0.0)
    if correlation == 0.0:
        return "; nights in a row are not seen to be alike"
    return (
        f"; nights in a row are alike, correlation {correlation:.2f}, which is counted: by "
        "simulation up to twice that chance"
    )
