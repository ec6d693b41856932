"""A night in Markdown: the summary of a scheduled job, a comment."""

from __future__ import annotations

from collections.abc import Iterator

from evalguard.core.gate_state import GateState
from evalguard.core.markdown_text import inline
from evalguard.core.reports.night_report import (
    NightReport,
    PairNight,
)
from evalguard.report.table import Table
from evalguard.report.words.night_news import (
    change_point_error_text,
    metric_key_text,
    night_drift_texts,
    night_news,
    night_subject,
    pair_name,
    report_link,
)
from evalguard.report.words.plain_text import printable

_ICON: dict[GateState, str] = {"passed": "✅", "regressed": "❌", "failed": "💥", "undecided": "⚠️"}
_MOST_ROWS = 500


def night_markdown(report: NightReport) -> str:
    """Return the page; names and texts of models stay text."""
    parts = [f"### {inline(night_subject(report), 300)}"]
    parts.append("\n".join(f"- {inline(line, 500)}" for line in night_news(report)))
    parts.append(_pair_table(report))
    if report.notes:
        parts.append("\n".join(f"- {inline(printable(note), 500)}" for note in report.notes))
    if change_point_error_text(report):
        parts.append(inline(change_point_error_text(report), 500))
    parts.append(f"Exit code {report.exit_code}; {inline(printable(report.guard), 200)}.")
    return "\n\n".join(parts) + "\n"


def _pair_table(report: NightReport) -> str:
    headings = ["", "pair", "gate", "worst metric", "sigma", "culprits", "run"]
    shown = report.pairs[:_MOST_ROWS]
    table = Table(headings=headings, rows=[list(_pair_cells(report, pair)) for pair in shown])
    more = len(report.pairs) - len(shown)
    return table.markdown() + (f"\n\n_{more} more pairs_" if more else "")


def _pair_cells(report: NightReport, pair: PairNight) -> Iterator[str]:
    yield _ICON[pair.state]
    yield printable(pair_name(pair))
    yield printable(pair.reason)
    worst = pair.worst
    if worst is None:
        yield from ("", "")
    else:
        drift, low, high = night_drift_texts(worst, pair.margin)
        yield printable(metric_key_text(worst.key))
        yield f"{drift} [{low}, {high}]" if low else drift
    yield printable(", ".join(pair.culprits) or pair.bisection)
    yield printable(report_link(report, pair.run_folder))
