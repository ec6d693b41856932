"""What a history answered, for a terminal: its runs, flips between two nights, changes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.reports.history_report import (
    FlipReport,
    Found,
    HistoryAddition,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    TrendReport,
)
from evalguard.report.history_changes import change_blocks
from evalguard.report.history_runs import listing_blocks
from evalguard.report.night_flips import flip_blocks
from evalguard.report.terminal_page import render_page, wrap_prose
from evalguard.report.trends import trend_blocks
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

_MOST_PROBLEMS = 3


def history_text(found: Found, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return the text for a terminal of a width; with ``verbose`` every trend."""
    return render_page(_answer_blocks(found, width, verbose), width, color=color)


def _answer_blocks(found: Found, width: int, verbose: bool) -> Iterator[list[Text]]:
    if not isinstance(found, (HistoryCheck, HistoryAddition)) and found.problems:
        yield wrap_prose(_damaged_rows_text(found.problems), width, style="bold magenta")
    if isinstance(found, HistoryListing):
        yield from listing_blocks(found, width)
    elif isinstance(found, TrendReport):
        yield from trend_blocks(found, width, verbose=verbose)
    elif isinstance(found, FlipReport):
        yield from flip_blocks(found, width)
    elif isinstance(found, HistoryCheck):
        yield from _check_blocks(found, width)
    elif isinstance(found, HistoryExport):
        yield from _export_blocks(found, width)
    else:
        yield from change_blocks(found, width)


def _damaged_rows_text(problems: tuple[str, ...]) -> str:
    rows = "row is" if len(problems) == 1 else "rows are"
    return (
        f"{format_count(len(problems))} {rows} damaged and left out (evalguard history check): "
        f"{printable('; '.join(problems[:_MOST_PROBLEMS]))}"
    )


def _check_blocks(check: HistoryCheck, width: int) -> Iterator[list[Text]]:
    for problem in check.problems:
        yield wrap_prose(printable(problem), width)
    damaged = f"{format_count(len(check.problems))} problems" if check.problems else "all whole"
    summary = (
        f"{printable(check.file)}: {format_count(check.runs)} runs, "
        f"{format_count(check.metrics)} metrics, "
        f"{format_count(check.vectors)} vectors, {size_text(check.size)}; {damaged}."
    )
    yield wrap_prose(summary, width)
    if check.problems:
        rescue = (
            f"What can be read: sqlite3 {printable(check.file)} .recover | sqlite3 NEW; run "
            "folders keep their own result.json and samples."
        )
        yield wrap_prose(rescue, width)


def _export_blocks(export: HistoryExport, width: int) -> Iterator[list[Text]]:
    for file, rows in export.written.items():
        yield wrap_prose(f"wrote {printable(file)}: {format_count(rows)} rows", width)
