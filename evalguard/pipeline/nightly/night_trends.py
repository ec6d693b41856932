"""Trends of a pair as a night shows them: the latest nights, at a rate that holds for a year."""

from __future__ import annotations

from pathlib import Path

from evalguard.history.report import TrendReport
from evalguard.night_report import ALPHA, LOOKS
from evalguard.pipeline.history.asking import Wanted, trends

MOST_NIGHTS = 120


def night_trends(history: Path, wanted: Wanted) -> TrendReport:
    """Trends with change points, for one of the looks of a year.

    Raises:
        UsageError: the history has no such pair, or cannot be read.
    """
    return trends(history, wanted, last=MOST_NIGHTS, alpha=ALPHA, looks=LOOKS)
