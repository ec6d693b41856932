"""The drift of one metric over nights as a picture, and in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup
from rich.text import Text

from evalguard.nights.history_report import Trend
from evalguard.page.charts import AxisScale, draw_picture, draw_text, plot_area, tick_text
from evalguard.page.html_page import make_tag
from evalguard.page.phrases import format_time

_WIDTH, _HEIGHT = 720.0, 240.0
_MOST_INTERVALS = 400  # nights whose intervals can still be told apart
_FEW_NIGHTS = 120  # nights whose dots do not hide the level that runs through them


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendNight:
    """One night: ``low`` and ``high`` end its interval; ``said`` is its row in words.

    ``kind`` is a class of the stylesheet (the outcome). A night without a finite drift is a gap.
    """

    drift: float | None
    low: float | None = None
    high: float | None = None
    kind: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLevel:
    """Nights ``start`` to ``stop`` (exclusive, positions among all nights) with one mean drift."""

    start: int
    stop: int
    mean: float


def draw_trend(
    nights: Sequence[TrendNight],
    levels: Sequence[TrendLevel],
    *,
    margin: float,
    ends: tuple[str, str],
    said: str,
    unit: str = "sigma",
) -> Markup:
    """Drift over nights, with the margin; a vertical line stands where a new level begins.

    Args:
        ends: what is written below the first and the last night.
        said: the picture in words.
        unit: of drifts, levels and margin.
    """
    (left_edge, right_edge), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
    shown = [value for night in nights for value in (night.drift, night.low, night.high)]
    up = AxisScale.over([0.0, margin, *shown], bottom, top, bend=True)
    across = AxisScale(low=-0.5, high=max(len(nights), 1) - 0.5, start=left_edge, stop=right_edge)
    few = len(nights) <= _FEW_NIGHTS
    dots = [_draw_night(night, across.at(index), up, bars=len(nights) <= _MOST_INTERVALS, few=few)
            for index, night in enumerate(nights)]  # fmt: skip
    drawn = _draw_levels(levels, across, up)
    parts: list[object] = [_draw_rules(up, across, margin)]
    parts += [*drawn, *dots] if few else [*dots, *drawn]
    parts.append(draw_text(4.0, top - 10, unit, kind="name"))
    parts.append(draw_text(left_edge, bottom + 16, ends[0]))
    if ends[1] != ends[0]:
        parts.append(draw_text(right_edge, bottom + 16, ends[1], anchor="end"))
    return draw_picture(_WIDTH, _HEIGHT, said, *parts, kind="trend" if few else "trend crowded")


def _draw_rules(up: AxisScale, across: AxisScale, margin: float) -> Markup:
    parts = []
    for value in up.ticks(5):
        y = up.at(value)
        kind = "zero" if value == 0.0 else "grid"
        parts.append(make_tag("line", class_=kind, x1=across.start, x2=across.stop, y1=y, y2=y))
        parts.append(draw_text(across.start - 5, y + 4, tick_text(value), anchor="end"))
    y = up.at(margin)
    parts.append(make_tag("line", class_="margin", x1=across.start, x2=across.stop, y1=y, y2=y))
    parts.append(draw_text(across.stop, y - 4, "margin", anchor="end", kind="name"))
    return make_tag("g", *parts)


def _draw_levels(levels: Sequence[TrendLevel], across: AxisScale, up: AxisScale) -> list[Markup]:
    parts = []
    for number, level in enumerate(levels):
        first, last = across.at(level.start - 0.5), across.at(level.stop - 0.5)
        y = up.at(level.mean)
        if number:
            parts.append(
                make_tag("line", class_="change", x1=first, x2=first, y1=up.start, y2=up.stop)
            )
        parts.append(make_tag("line", class_="level", x1=first, x2=last, y1=y, y2=y))
    return parts


def _draw_night(night: TrendNight, x: float, up: AxisScale, *, bars: bool, few: bool) -> Markup:
    if night.drift is None or not math.isfinite(night.drift):
        return Markup("")
    parts: list[object] = [make_tag("title", night.said)] if night.said else []
    if bars and night.low is not None and night.high is not None:
        low, high = up.at(night.low), up.at(night.high)
        parts.append(make_tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high))
    parts.append(
        make_tag("circle", class_="point", cx=x, cy=up.at(night.drift), r=3.0 if few else 1.5)
    )
    return make_tag("g", *parts, class_=f"night {night.kind}".strip())


_TEXT_HEIGHT = 11
_SPARKS = "▁▂▃▄▅▆▇█"
_AXIS = 8
_POINT, _LEVEL, _MARGIN, _ZERO, _CHANGE, _GAP = "●", "─", "┄", "·", "│", " "


def plot_trend(trend: Trend, width: int) -> list[Text]:
    """A plot of ``width`` cells: nights from left to right, levels, the margin, change points.

    Where there are more nights than columns, a column is the mean of several.
    """
    drifts = finite_drifts(trend)
    if not drifts:
        return []
    columns = _night_columns(len(drifts), width - _AXIS - 1)
    margin = trend.nights[-1].margin_in(trend.unit)
    levels = [_level_mean(trend, index) for index in range(len(drifts))]
    low, high = _drift_range([*drifts, *levels, 0.0, margin])
    grid = [[_GAP] * len(columns) for _ in range(_TEXT_HEIGHT)]
    starts = {point.position for point in trend.scan.points}
    for column, nights in enumerate(columns):
        if starts & set(nights):
            for row in grid:
                row[column] = _CHANGE
        grid[_plot_row(0.0, low, high)][column] = _ZERO
        grid[_plot_row(margin, low, high)][column] = _MARGIN
        grid[_plot_row(_mean_at(levels, nights), low, high)][column] = _LEVEL
        grid[_plot_row(_mean_at(drifts, nights), low, high)][column] = _POINT
    lines = [
        Text(f"{_axis_label(number, low, high, margin):>{_AXIS}} {''.join(row)}".rstrip())
        for number, row in enumerate(grid)
    ]
    return [*lines, _time_axis(trend, len(columns))]


def draw_sparkline(trend: Trend, width: int) -> str:
    """The same in one line, from the smallest to the largest of the series."""
    drifts = finite_drifts(trend)
    if not drifts:
        return ""
    columns = _night_columns(len(drifts), width)
    means = [_mean_at(drifts, nights) for nights in columns]
    low, high = min(means), max(means)
    if high - low <= 0.0:
        return _SPARKS[0] * len(means)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(steps * (mean - low) / (high - low))] for mean in means)


def finite_drifts(trend: Trend) -> list[float]:
    """Drift of the nights that have one."""
    return [trend.nights[index].metric.drift_in(trend.unit)[0] or 0.0 for index in trend.used]


def _night_columns(nights: int, room: int) -> list[range]:
    count = min(nights, max(room, 1))
    edges = [nights * column // count for column in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


def _level_mean(trend: Trend, place: int) -> float:
    return next(level.mean for level in trend.scan.levels if level.start <= place < level.stop)


def _mean_at(values: Sequence[float], places: range) -> float:
    return math.fsum(values[index] for index in places) / len(places)


def _drift_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _plot_row(value: float, low: float, high: float) -> int:
    return round((_TEXT_HEIGHT - 1) * (high - value) / (high - low))


def _axis_label(row: int, low: float, high: float, margin: float) -> str:
    if row == _plot_row(margin, low, high):
        return f"{margin:.2f}"
    if row == _plot_row(0.0, low, high):
        return "0"
    ends = {0: high, _TEXT_HEIGHT - 1: low}
    return f"{ends[row]:.2f}" if row in ends else ""


def _time_axis(trend: Trend, width: int) -> Text:
    first, last = (format_time(trend.nights[trend.used[end]].run.created)[:10] for end in (0, -1))
    gap = width - len(first) - len(last)
    line = f"{first}{' ' * gap}{last}" if gap > 0 else f"{first} to {last}"
    return Text(" " * (_AXIS + 1) + line, style="dim")
