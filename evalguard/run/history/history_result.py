"""HistoryResult: what a history answered, for a person and for a program."""

from __future__ import annotations

import json
from dataclasses import dataclass

from evalguard.core.reports.history_report import (
    FlipReport,
    Found,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    TrendReport,
)
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED
from evalguard.report.contract.history_document import history_document
from evalguard.report.history_terminal import history_text


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """What was found."""

    found: Found

    @property
    def exit_code(self) -> int:
        """1 where a check found something damaged, 3 where all that was asked for is damaged, else
        0: a history judges nothing."""
        if isinstance(self.found, HistoryCheck):
            return EXIT_REGRESSED if self.found.problems else EXIT_PASSED
        return EXIT_FAILED if _is_all_damaged(self.found) else EXIT_PASSED

    def to_json(self) -> str:
        """Return one JSON document (schema ``evalguard.history/1``)."""
        return json.dumps(history_document(self.found), indent=2, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return text for a terminal; with ``verbose`` every trend."""
        return history_text(self.found, width=width, color=color, verbose=verbose)


def _is_all_damaged(found: Found) -> bool:
    """Whether damaged rows were left out, and nothing is there beside them."""
    match found:
        case HistoryListing():
            known = any(run.metrics for run in found.runs)
        case TrendReport():
            known = bool(found.trends)
        case FlipReport():
            known = any(metric.flips is not None for metric in found.metrics)
        case HistoryExport():
            known = any(found.written.values())
        case _:
            return False
    return bool(found.problems) and not known
