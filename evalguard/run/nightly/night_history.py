"""Puts the runs of a night into its history, which costs no pair its verdict.

Only the night writes there, from the run folders. Another process may hold the file (a backup, a
long export): what cannot be kept in its turn is tried again when all verdicts are there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.core.reports.night_report import PairNight
from evalguard.errors import EvalguardError, error_text
from evalguard.run.history.stored_runs import AlreadyInHistoryError, add_run


@dataclass(slots=True)
class NightHistory:
    """The history of a night.

    Attributes:
        file: None: no history is kept.
        trouble: why the last run could not be kept; "" while all can. Waiting for the file takes
            half a minute, so that nothing is tried any more then, but ``again``.
    """

    file: Path | None
    trouble: str = ""

    def kept(self, pair: PairNight) -> PairNight:
        """Keep a pair's run; where that fails, the pair says why."""
        if self.file is None or not pair.created:
            return pair
        return replace(pair, not_kept=self.trouble or self._tried(self.file, pair))

    def again(self) -> None:
        """Forget what was in the way."""
        self.trouble = ""

    def _tried(self, file: Path, pair: PairNight) -> str:
        if pair.run_folder is None:
            return "it has no run folder"
        try:
            add_run(file, Path(pair.run_folder))
        except AlreadyInHistoryError:
            return ""
        except EvalguardError as error:
            self.trouble = error_text(error)
            return self.trouble
        return ""
