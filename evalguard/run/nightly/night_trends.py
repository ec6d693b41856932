"""Trends of a pair as a night shows them: the latest nights, at a rate that holds for a year."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evalguard.core.reports.history_report import TrendReport
from evalguard.core.reports.night_report import ALPHA, LOOKS, NightReport
from evalguard.errors import EvalguardError
from evalguard.run.history.queries import HistorySelection, find_trends

MOST_NIGHTS = 120


def read_night_trends(history: Path, wanted: HistorySelection) -> TrendReport:
    """Trends with change points, for one of the looks of a year.

    Raises:
        UsageError: the history has no such pair, or cannot be read.
    """
    return find_trends(history, wanted, last=MOST_NIGHTS, alpha=ALPHA, looks=LOOKS)


def render_night_index(report: NightReport) -> str:
    """Return the page; a history that cannot be read costs only the trends."""
    from evalguard.report.html.night_page import render_night_page

    return render_night_page(report, tuple(_pair_trends(report)))


def _pair_trends(report: NightReport) -> Iterator[TrendReport]:
    for pair in report.pairs:
        if not (report.history and pair.created):
            continue
        wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
        try:
            yield read_night_trends(Path(report.history), wanted)
        except EvalguardError:  # the night's changes say why
            continue
