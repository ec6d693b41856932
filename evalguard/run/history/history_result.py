"""HistoryResult: what a history answered, for a person and for a program."""

from __future__ import annotations

import json
from dataclasses import dataclass

from evalguard.core.reports.history_report import (
    Found,
    HistoryCheck,
)
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED
from evalguard.report.contract.history_document import history_document
from evalguard.report.history_terminal import history_text


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """What was found."""

    found: Found

    @property
    def exit_code(self) -> int:
        """1 where a check found something damaged, else 0: a history judges nothing."""
        damaged = isinstance(self.found, HistoryCheck) and self.found.problems
        return EXIT_REGRESSED if damaged else EXIT_PASSED

    def to_json(self) -> str:
        """Return one JSON document (schema ``evalguard.history/1``)."""
        return json.dumps(history_document(self.found), indent=2, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return text for a terminal; with ``verbose`` every trend."""
        return history_text(self.found, width=width, color=color, verbose=verbose)
