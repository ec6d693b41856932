"""The rows of the table of metrics, each with its picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from markupsafe import Markup

from evalguard.report.html.forest_plot import ForestBar, ForestPlot
from evalguard.report.view.metric_view import MetricView, TaskView
from evalguard.report.view.report_view import ReportView

_MOST_UNFOLDED = 15  # rows
_MOST_NAMED = 20
_GRAVE_STATES = ("regressed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A row of the table; ``name`` is its id in the page, which no text of a run is part of."""

    name: str
    metric: MetricView
    picture: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRows:
    """The table: its tasks, their axis, and of a table too long to be seen at once the worst rows.

    ``worst``: metrics that regressed or failed, the largest drift first; ``more`` are not named.
    """

    tasks: tuple[tuple[TaskView, tuple[MetricRow, ...]], ...]
    axis: Markup
    long: bool
    worst: tuple[MetricRow, ...]
    more: int


def metric_rows(view: ReportView) -> MetricRows:
    """Return each task with its shown metrics and their pictures, and the axis of them all."""
    shown = [metric for metric in view.metrics if metric.shown]
    forest = ForestPlot.over([_forest_bar(metric) for metric in shown])
    rows = [
        MetricRow(name=f"metric-{number}", metric=metric, picture=forest.row(_forest_bar(metric)))
        for number, metric in enumerate(shown)
    ]
    own = iter(rows)
    tasks = [(task, tuple(islice(own, sum(m.shown for m in task.metrics)))) for task in view.tasks]
    long = len(rows) > _MOST_UNFOLDED
    grave = sorted(
        (r for r in rows if long and r.metric.outcome in _GRAVE_STATES), key=_sigma_order
    )
    return MetricRows(
        tasks=tuple((task, of_task) for task, of_task in tasks if of_task),
        axis=forest.axis(),
        long=long,
        worst=tuple(grave[:_MOST_NAMED]),
        more=max(len(grave) - _MOST_NAMED, 0),
    )


def _sigma_order(row: MetricRow) -> float:
    return -math.inf if row.metric.plot.sigma is None else -row.metric.plot.sigma


def _forest_bar(metric: MetricView) -> ForestBar:
    return ForestBar(
        sigma=metric.plot.sigma,
        low=metric.plot.low,
        high=metric.plot.high,
        kind=metric.outcome,
        said=f"{metric.full_label}: sigma {metric.sigma} {metric.interval}",
        margin=metric.plot.margin,
    )
