"""Pages of a history: sigma of each metric over nights as a plot with its words."""

from __future__ import annotations

from evalguard.core.reports.history_report import TrendReport
from evalguard.report.html.html_page import html_page
from evalguard.report.html.trend_figures import format_sentence, trend_figure
from evalguard.report.trends import trend_error_text
from evalguard.report.words.plain_text import printable


def render_history_page(report: TrendReport) -> str:
    """Return the page of a pair's trends, with their change points."""
    figures = [figure for trend in report.trends if (figure := trend_figure(trend)) is not None]
    return html_page(
        "history.html",
        title=printable(f"{report.candidate} against {report.base}: sigma over nights"),
        figures=figures,
        rate=format_sentence(trend_error_text(report)),
        file=printable(report.file),
        problems=[printable(line) for line in report.problems],
    )
