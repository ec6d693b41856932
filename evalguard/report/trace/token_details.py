"""DetailView: the errors of one point by head and by token."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.core.reports.trace_report import (
    TokenDetail,
    TraceReport,
)
from evalguard.report.trace.trace_words import (
    format_error,
)
from evalguard.report.words.plain_text import printable

_MOST_TOKENS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailView:
    """A point in detail: its heads, and the worst token positions."""

    point: str
    heads: tuple[tuple[str, str], ...]
    tokens: tuple[tuple[str, str, str, str], ...]


def detail_view(report: TraceReport, one: TokenDetail) -> DetailView:
    """Return the errors of one point as texts, the worst tokens first."""
    cells = [
        (error, document, position)
        for document, errors in enumerate(one.tokens)
        for position, error in enumerate(errors)
        if error == error
    ]
    worst = sorted(cells, reverse=True)[:_MOST_TOKENS]
    return DetailView(
        point=printable(one.point),
        heads=tuple((str(head), format_error(error)) for head, error in enumerate(one.heads)),
        tokens=tuple(
            (
                printable(_document_name(report, document)),
                str(position),
                printable(_token_text(report, document, position)),
                format_error(error),
            )
            for error, document, position in worst
        ),
    )


def _document_name(report: TraceReport, number: int) -> str:
    return report.documents[number].name if number < len(report.documents) else f"#{number}"


def _token_text(report: TraceReport, document: int, position: int) -> str:
    texts = report.documents[document].token_texts if document < len(report.documents) else ()
    return texts[position] if position < len(texts) else ""
