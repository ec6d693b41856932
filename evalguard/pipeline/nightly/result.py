"""NightlyResult: what ``evalguard.nightly`` returns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from evalguard.night_report import NightReport, PairNight
from evalguard.report.night.document import night_document
from evalguard.report.night.summary import night_text


@dataclass(frozen=True, slots=True)
class NightlyResult:
    """A finished night.

    ``problems`` say what of it could not be written, ``tracked`` what became of its runs at
    experiment trackers.
    """

    report: NightReport
    problems: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[PairNight, ...]:
        """What every pair came to."""
        return self.report.pairs

    @property
    def exit_code(self) -> int:
        """Over all pairs: 1, 3, 4 or 0; see ``gravest_exit_code``."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract (schema ``evalguard.nightly/1``) as plain data."""
        return night_document(self.report)

    def to_json(self) -> str:
        """Return the JSON contract as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the text that the command line prints; with ``verbose`` every pair and note."""
        text = night_text(self.report, width=width, color=color, verbose=verbose)
        return "\n\n".join([text, "\n".join(self.tracked)]) if self.tracked else text
