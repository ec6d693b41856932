"""Trends in words and plots."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.text import Text

from evalguard.history.level import ChangePoint
from evalguard.history.report import Change, Trend, TrendReport
from evalguard.report.history_table import key_label, when
from evalguard.report.page import prose
from evalguard.report.plain_text import fitted, padded, printable
from evalguard.report.rounding import count, p_phrase, with_stderr
from evalguard.report.trend_plot import plot, sparkline
from evalguard.report.wording import percent

_MOST_PLOTS = 2
_SPARK, _SIGMA = 24, 16
_MOST_NAMED = 4


def trend_blocks(report: TrendReport, width: int) -> Iterator[list[Text]]:
    """Plots where one or two metrics are asked for, else a line for each."""
    pair = f"{printable(report.candidate)} against {printable(report.base)}"
    yield prose(f"{printable(report.file)}: {pair}, sigma over nights", width)
    if len(report.trends) <= _MOST_PLOTS:
        for trend in report.trends:
            yield [Text(fitted(_title(trend), width), style="bold"), *plot(trend, width)]
            yield from _notes(trend, width)
    else:
        yield list(_lines(report, width))
        for trend in report.trends:
            yield from _notes(trend, width)
    yield prose(rate(report), width, style="dim")


def _lines(report: TrendReport, width: int) -> Iterator[Text]:
    room = max(width - _SPARK - _SIGMA - 4, 12)
    labels = [key_label(*trend.key) for trend in report.trends]
    room = min(room, max(map(cell_len, labels)))
    for label, trend in zip(labels, report.trends, strict=True):
        spark = padded(sparkline(trend, _SPARK), _SPARK)
        yield Text(fitted(f"{padded(label, room)}  {spark}  {_latest(trend)}", width))


def _title(trend: Trend) -> str:
    nights = count(len(trend.nights))
    noun = "night" if len(trend.nights) == 1 else "nights"
    return f"{key_label(*trend.key)}: {nights} {noun}, the latest {_latest(trend)}"


def _latest(trend: Trend) -> str:
    metric = trend.nights[-1].metric
    return metric.outcome if metric.sigma is None else with_stderr(metric.sigma, metric.stderr)


def change_sentences(trend: Trend) -> list[str]:
    """What is said of each change point."""
    return [
        f"{_change(trend, point)}{_why(changes)}"
        for point, changes in zip(trend.scan.points, trend.changes, strict=True)
    ]


def _notes(trend: Trend, width: int) -> Iterator[list[Text]]:
    """What changed, and which nights could not be used."""
    label = key_label(*trend.key)
    lines: list[Text] = []
    for point, said in zip(trend.scan.points, change_sentences(trend), strict=True):
        style = "red" if point.step > 0 else "green"
        lines += prose(f"{label}: {said}", width, style=style)
    left_out = len(trend.nights) - len(trend.used)
    if left_out:
        verb = "has" if left_out == 1 else "have"
        lines += prose(
            f"{label}: {count(left_out)} of {count(len(trend.nights))} nights {verb} no finite "
            "sigma and are left out",
            width,
        )
    if lines:
        yield lines


def _change(trend: Trend, point: ChangePoint) -> str:
    runs = [trend.nights[place].run for place in trend.used]
    run, first, last = (runs[at] for at in (point.position, point.earliest, point.latest))
    within = "" if first == last else f"; 95%: {first.number} to {last.number}"
    way = "worse" if point.step > 0 else "better"
    before = with_stderr(point.before.mean, point.before.stderr)
    after = with_stderr(point.after.mean, point.after.stderr)
    step = with_stderr(abs(point.step), point.stderr)
    return (
        f"{way} by {step} sigma from run {run.number} on ({when(run.created)[:10]}{within}): "
        f"{before} before, {after} since ({p_phrase(point.p_value)})"
    )


def _why(changes: tuple[Change, ...]) -> str:
    if not changes:
        return "; nothing else that is kept changed there"
    told = [
        f"{printable(change.what)} {printable(change.before)} -> {printable(change.after)} in run "
        f"{change.run}"
        for change in changes[:_MOST_NAMED]
    ]
    more = f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return f"; changed there: {', '.join(told)}{more}"


def rate(report: TrendReport) -> str:
    """How many change points there are, and the chance of a false one."""
    several = len(report.trends) > 1
    among = f"among these {count(len(report.trends))} trends" if several else "in this trend"
    found = sum(len(trend.scan.points) for trend in report.trends)
    points = "no change point" if not found else f"{found} change point{'s' if found > 1 else ''}"
    looks = f" in {count(report.looks)} answers like this" if report.looks > 1 else ""
    return (
        f"{points}; the chance of any false one {among}{looks} is at most {percent(report.alpha)} "
        "(permutation scan; nights that do not depend on each other)"
    )
