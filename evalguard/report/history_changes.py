"""What was put into a history, or taken out of it, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.amounts import size_text
from evalguard.history.report import HistoryAddition, HistoryPruning
from evalguard.report.page import prose
from evalguard.report.plain_text import printable
from evalguard.report.rounding import count


def change_blocks(found: HistoryAddition | HistoryPruning, width: int) -> Iterator[list[Text]]:
    """Blocks of lines."""
    if isinstance(found, HistoryAddition):
        yield prose(_added(found), width)
    else:
        yield from _pruned(found, width)


def _added(found: HistoryAddition) -> str:
    run = found.run
    return printable(
        f"{found.file}: run {run.number}, {run.base} vs {run.candidate} of {run.created}; "
        f"{count(found.metrics)} metrics, {count(found.with_documents)} of them with documents."
    )


def _pruned(found: HistoryPruning, width: int) -> Iterator[list[Text]]:
    verb = "would be removed" if found.dry_run else "removed"
    if found.removed:
        first, last = found.removed[0], found.removed[-1]
        yield prose(
            f"{count(len(found.removed))} of {count(len(found.removed) + found.kept)} runs {verb}: "
            f"from {first.created} (run {first.number}) to {last.created} (run {last.number}).",
            width,
        )
    else:
        yield prose(f"Nothing to remove: all {count(found.kept)} runs are kept.", width)
    sizes = f"{size_text(found.size_before)} before, {size_text(found.size)} now"
    if found.removed and not found.dry_run:
        yield prose(f"{printable(found.file)}: {sizes}.", width)
