"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from evalguard.report.html.bisection_section import bisection_section
from evalguard.report.html.charts.forest import Bar, Forest
from evalguard.report.html.document_blocks import document_blocks
from evalguard.report.html.drift_section import drift_section
from evalguard.report.html.page import html_page
from evalguard.report.view import ReportView
from evalguard.report.view.metric import MetricView, TaskView
from evalguard.run_documents import RunDocuments

_SCRIPTS = ("blocks.js", "rows.js", "grid.js", "tokens.js", "drilldown.js", "report.js")


def render(view: ReportView, documents: Sequence[RunDocuments] = ()) -> str:
    """Return the page of a comparison.

    Args:
        documents: what was asked and answered, one per task; without them there is neither a table
            of documents nor a picture of their differences.
    """
    tables = document_blocks(view, documents)
    rows, axis = _forest(view)
    return html_page(
        "report.html",
        scripts=_SCRIPTS if tables.blocks else (),
        view=view,
        forest_rows=rows,
        forest_axis=axis,
        shapes=drift_section(view, documents),
        searches=bisection_section(view.bisection),
        tables=bool(tables.blocks),
        cuts=tables.cuts,
        blocks=tables.blocks,
    )


def _forest(
    view: ReportView,
) -> tuple[list[tuple[TaskView, list[tuple[MetricView, Markup]]]], Markup]:
    shown = [metric for metric in view.metrics if metric.shown]
    margin = shown[0].plot.margin if shown else 1.0
    forest = Forest.over([_bar(metric) for metric in shown], margin)
    rows: list[tuple[TaskView, list[tuple[MetricView, Markup]]]] = []
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
