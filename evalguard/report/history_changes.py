"""What was put into a history, or taken out of it, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from evalguard.amounts import size_text
from evalguard.history.night import NightRun
from evalguard.history.report import HistoryAddition, HistoryPruning
from evalguard.report.page import prose
from evalguard.report.plain_text import printable
from evalguard.report.rounding import count


def change_blocks(found: HistoryAddition | HistoryPruning, width: int) -> Iterator[list[Text]]:
    """Blocks of lines."""
    if isinstance(found, HistoryAddition):
        yield prose(_added(found), width)
        yield from (prose(printable(note), width) for note in found.notes)
    else:
        yield from _pruned(found, width)


def _added(found: HistoryAddition) -> str:
    run = found.run
    return printable(
        f"{found.file}: run {run.number}, {run.base} vs {run.candidate} of {run.created}; "
        f"{count(found.metrics)} metrics, {count(found.with_documents)} of them with documents."
    )


def _span(runs: Sequence[NightRun]) -> str:
    first, last = (f"run {run.number} of {run.created}" for run in (runs[0], runs[-1]))
    return first if len(runs) == 1 else f"from {first} to {last}"


def _all_kept(number: int) -> str:
    if number < 2:
        return "the only run is kept" if number else "there are no runs"
    return f"all {count(number)} runs are kept"


def _pruned(found: HistoryPruning, width: int) -> Iterator[list[Text]]:
    verb = "would be removed" if found.dry_run else "removed"
    if found.removed:
        total = len(found.removed) + found.kept
        runs = "run" if total == 1 else "runs"
        removed = f"{count(len(found.removed))} of {count(total)} {runs} {verb}"
        yield prose(f"{removed}: {_span(found.removed)}.", width)
    else:
        yield prose(f"Nothing to remove: {_all_kept(found.kept)}.", width)
    sizes = f"{size_text(found.size_before)} before, {size_text(found.size)} now"
    if found.removed and not found.dry_run:
        yield prose(f"{printable(found.file)}: {sizes}.", width)
