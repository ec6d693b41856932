"""The table of metrics with its forest plot as a page of its own, for trackers that show HTML."""

from __future__ import annotations

from evalguard.compare_report import CompareReport
from evalguard.report.html.metric_rows import metric_rows
from evalguard.report.html.page import html_page
from evalguard.report.view import report_view


def forest_page(report: CompareReport) -> str:
    """Return a self-contained page: the verdict in a sentence, and sigma of every metric drawn."""
    view = report_view(report)
    return html_page("forest.html", view=view, forest=metric_rows(view))
