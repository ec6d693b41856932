"""What a history answered, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.amounts import size_text
from evalguard.history.report import (
    FlipReport,
    Found,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    HistoryPruning,
    TrendReport,
)
from evalguard.report.flips_text import flip_blocks
from evalguard.report.history_changes import change_blocks
from evalguard.report.history_table import listing_blocks
from evalguard.report.page import page, prose
from evalguard.report.plain_text import printable
from evalguard.report.rounding import count
from evalguard.report.trend_text import trend_blocks

_MOST_SHOWN = 3


def history_text(found: Found, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return the text for a terminal of a width; with ``verbose`` every trend."""
    return page(_blocks(found, width, verbose), width, color=color)


def _blocks(found: Found, width: int, verbose: bool) -> Iterator[list[Text]]:
    if (
        isinstance(found, (HistoryListing, TrendReport, FlipReport, HistoryPruning))
        and found.problems
    ):
        yield prose(_left_out(found.problems), width, style="bold magenta")
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


def _left_out(problems: tuple[str, ...]) -> str:
    rows = "row is" if len(problems) == 1 else "rows are"
    return (
        f"{count(len(problems))} {rows} damaged and left out (evalguard history check): "
        f"{printable('; '.join(problems[:_MOST_SHOWN]))}"
    )


def _check_blocks(check: HistoryCheck, width: int) -> Iterator[list[Text]]:
    for problem in check.problems:
        yield prose(printable(problem), width)
    damaged = f"{count(len(check.problems))} problems" if check.problems else "all whole"
    summary = (
        f"{printable(check.file)}: {count(check.runs)} runs, {count(check.metrics)} metrics, "
        f"{count(check.vectors)} vectors, {size_text(check.size)}; {damaged}."
    )
    yield prose(summary, width)
    if check.problems:
        rescue = (
            f"What can be read: sqlite3 {printable(check.file)} .recover | sqlite3 NEW; run "
            "folders keep their own result.json and samples."
        )
        yield prose(rescue, width)


def _export_blocks(export: HistoryExport, width: int) -> Iterator[list[Text]]:
    for file, rows in export.written.items():
        yield prose(f"wrote {printable(file)}: {count(rows)} rows", width)
