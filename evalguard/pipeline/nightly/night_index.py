"""The index page of a night, with the trends that its history has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evalguard.errors import EvalguardError
from evalguard.history.report import TrendReport
from evalguard.night_report import NightReport
from evalguard.pipeline.history.asking import Wanted
from evalguard.pipeline.nightly.night_trends import night_trends


def night_index(report: NightReport) -> str:
    """Return the page; a history that cannot be read costs only the trends."""
    from evalguard.report.night.html import night_page

    return night_page(report, tuple(_trends(report)))


def _trends(report: NightReport) -> Iterator[TrendReport]:
    for pair in report.pairs:
        if not (report.history and pair.created):
            continue
        wanted = Wanted(base=pair.base, candidate=pair.candidate)
        try:
            yield night_trends(Path(report.history), wanted)
        except EvalguardError:  # the night's changes say why
            continue
