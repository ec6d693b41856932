"""The compare report as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.reports.run_documents import RunDocuments
from evalguard.report.html.bisection_section import bisection_section
from evalguard.report.html.document_blocks import pack_documents
from evalguard.report.html.drift_section import drift_section
from evalguard.report.html.html_page import html_page
from evalguard.report.html.metric_rows import metric_rows
from evalguard.report.html.trace_page import TRACE_SCRIPTS, draw_growth
from evalguard.report.trace.trace_view import TraceView
from evalguard.report.view.distribution_view import distribution_table
from evalguard.report.view.report_view import ReportView

_SCRIPTS = ("blocks.js", "rows.js", "grid.js", "tokens.js", "drilldown.js", "report.js")


def render_html(
    view: ReportView, documents: Sequence[RunDocuments] = (), trace: TraceView | None = None
) -> str:
    """Return the page of a comparison.

    Args:
        trace: of the two models; None: there is none.
        documents: what was asked and answered, one per task; without them there is neither a table
            of documents nor a picture of their differences.
    """
    tables = pack_documents(view, documents)
    drift = drift_section(view, documents)
    return html_page(
        "report.html",
        scripts=(
            *(_SCRIPTS if tables.blocks else ()),
            *(() if trace is None else TRACE_SCRIPTS),
        ),
        view=view,
        trace=trace,
        growth=None if trace is None else draw_growth(trace),
        forest=metric_rows(view),
        distributions=distribution_table(view.distributions),
        influence=drift.influence,
        shapes=drift.shapes,
        stories=bisection_section(view.bisection),
        tables=bool(tables.blocks),
        cuts=tables.cuts,
        blocks=tables.blocks,
    )
