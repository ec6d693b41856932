"""Drift over nights, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from evalguard.core.reports.history_report import (
    Trend,
)
from evalguard.report.history_runs import format_time

_HEIGHT = 11
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
    levels = [_level_mean(trend, place) for place in range(len(drifts))]
    low, high = _drift_range([*drifts, *levels, 0.0, margin])
    grid = [[_GAP] * len(columns) for _ in range(_HEIGHT)]
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
    return [trend.nights[place].metric.drift_in(trend.unit)[0] or 0.0 for place in trend.used]


def _night_columns(nights: int, room: int) -> list[range]:
    count = min(nights, max(room, 1))
    edges = [nights * column // count for column in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


def _level_mean(trend: Trend, place: int) -> float:
    return next(level.mean for level in trend.scan.levels if level.start <= place < level.stop)


def _mean_at(values: Sequence[float], places: range) -> float:
    return math.fsum(values[place] for place in places) / len(places)


def _drift_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _plot_row(value: float, low: float, high: float) -> int:
    return round((_HEIGHT - 1) * (high - value) / (high - low))


def _axis_label(row: int, low: float, high: float, margin: float) -> str:
    if row == _plot_row(margin, low, high):
        return f"{margin:.2f}"
    if row == _plot_row(0.0, low, high):
        return "0"
    ends = {0: high, _HEIGHT - 1: low}
    return f"{ends[row]:.2f}" if row in ends else ""


def _time_axis(trend: Trend, width: int) -> Text:
    first, last = (format_time(trend.nights[trend.used[end]].run.created)[:10] for end in (0, -1))
    gap = width - len(first) - len(last)
    line = f"{first}{' ' * gap}{last}" if gap > 0 else f"{first} to {last}"
    return Text(" " * (_AXIS + 1) + line, style="dim")
