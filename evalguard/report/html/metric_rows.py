"""The rows of the table of metrics, each with its picture: a forest plot."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from evalguard.report.html.charts.forest import Bar, Forest
from evalguard.report.view import ReportView
from evalguard.report.view.metric import MetricView, TaskView

TaskRows = tuple[TaskView, list[tuple[MetricView, Markup]]]


def metric_rows(view: ReportView) -> tuple[list[TaskRows], Markup]:
    """Return each task with its shown metrics and their pictures, and the axis below them all."""
    shown = [metric for metric in view.metrics if metric.shown]
    margin = shown[0].plot.margin if shown else 1.0
    forest = Forest.over([_bar(metric) for metric in shown], margin)
    rows: list[TaskRows] = []
    for task in view.tasks:
        own: list[Any] = [(m, forest.row(_bar(m))) for m in task.metrics if m.shown]
        if own:
            rows.append((task, own))
    return rows, forest.axis()


def _bar(metric: MetricView) -> Bar:
    return Bar(
        sigma=metric.plot.sigma,
        low=metric.plot.low,
        high=metric.plot.high,
        kind=metric.outcome,
        said=f"{metric.full_label}: sigma {metric.sigma} {metric.interval}",
    )
