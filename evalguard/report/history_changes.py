"""What was put into a history, or taken out of it, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.history_night import NightRun
from evalguard.core.reports.history_report import (
    HistoryAddition,
    HistoryPruning,
)
from evalguard.report.terminal_page import wrap_prose
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count


def change_blocks(found: HistoryAddition | HistoryPruning, width: int) -> Iterator[list[Text]]:
    """Blocks of lines."""
    if isinstance(found, HistoryAddition):
        yield wrap_prose(_added_text(found), width)
        yield from (wrap_prose(printable(note), width) for note in found.notes)
    else:
        yield from _pruned_blocks(found, width)


def _added_text(found: HistoryAddition) -> str:
    run = found.run
    return printable(
        f"{found.file}: run {run.number}, {run.base} vs {run.candidate} of {run.created}; "
        f"{format_count(found.metrics)} metrics, {format_count(found.with_documents)} of them "
        "with documents."
    )


def _night_span(runs: Sequence[NightRun]) -> str:
    first, last = (f"run {run.number} of {run.created}" for run in (runs[0], runs[-1]))
    return first if len(runs) == 1 else f"from {first} to {last}"


def _nothing_removed_text(number: int) -> str:
    if number < 2:
        return "the only run is kept" if number else "there are no runs"
    return f"all {format_count(number)} runs are kept"


def _pruned_blocks(found: HistoryPruning, width: int) -> Iterator[list[Text]]:
    verb = "would be removed" if found.dry_run else "removed"
    if found.removed:
        total = len(found.removed) + found.kept
        runs = "run" if total == 1 else "runs"
        removed = f"{format_count(len(found.removed))} of {format_count(total)} {runs} {verb}"
        yield wrap_prose(f"{removed}: {_night_span(found.removed)}.", width)
    else:
        yield wrap_prose(f"Nothing to remove: {_nothing_removed_text(found.kept)}.", width)
    sizes = f"{size_text(found.size_before)} before, {size_text(found.size)} now"
    if found.removed and not found.dry_run:
        yield wrap_prose(f"{printable(found.file)}: {sizes}.", width)
