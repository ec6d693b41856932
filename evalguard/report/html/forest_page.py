"""The forest page: the verdict in a sentence, sigma of every metric drawn, and KL."""

from __future__ import annotations

from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.html.html_page import html_page
from evalguard.report.html.metric_rows import metric_rows
from evalguard.report.view.distribution_view import distribution_table
from evalguard.report.view.report_view import build_report_view


def render_forest_page(report: CompareReport) -> str:
    """Return a self-contained page: the verdict in a sentence, sigma of every metric drawn, and
    the table of distributions where they were compared, else why not.
    """
    view = build_report_view(report)
    return html_page(
        "forest.html",
        view=view,
        forest=metric_rows(view),
        distributions=distribution_table(view.distributions),
    )
