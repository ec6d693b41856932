"""The report as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.report.html.bisection_section import bisection_section
from evalguard.report.html.document_blocks import document_blocks
from evalguard.report.html.drift_section import drift_section
from evalguard.report.html.metric_rows import metric_rows
from evalguard.report.html.page import html_page
from evalguard.report.view import ReportView
from evalguard.run_documents import RunDocuments

_SCRIPTS = ("blocks.js", "rows.js", "grid.js", "tokens.js", "drilldown.js", "report.js")


def render(view: ReportView, documents: Sequence[RunDocuments] = ()) -> str:
    """Return the page of a comparison.

    Args:
        documents: what was asked and answered, one per task; without them there is neither a table
            of documents nor a picture of their differences.
    """
    tables = document_blocks(view, documents)
    drift = drift_section(view, documents)
    return html_page(
        "report.html",
        scripts=_SCRIPTS if tables.blocks else (),
        view=view,
        forest=metric_rows(view),
        influence=drift.influence,
        shapes=drift.shapes,
        stories=bisection_section(view.bisection),
        tables=bool(tables.blocks),
        cuts=tables.cuts,
        blocks=tables.blocks,
    )
