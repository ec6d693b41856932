"""A history's trends as one self-contained HTML page."""

from __future__ import annotations

from evalguard.history.report import TrendReport
from evalguard.report.html.page import html_page
from evalguard.report.html.trends import as_sentence, trend_figure
from evalguard.report.plain_text import printable
from evalguard.report.trend_text import rate


def history_page(report: TrendReport) -> str:
    """Return the page of a pair's trends, with their change points."""
    figures = [figure for trend in report.trends if (figure := trend_figure(trend)) is not None]
    return html_page(
        "history.html",
        title=printable(f"{report.candidate} against {report.base}: sigma over nights"),
        figures=figures,
        rate=as_sentence(rate(report)),
        file=printable(report.file),
        problems=[printable(line) for line in report.problems],
    )
