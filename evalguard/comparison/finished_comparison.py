"""A finished comparison: all that follows its verdict is told of it and asks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalguard.config.options import CompareOptions
from evalguard.core.compare_report import CompareReport
from evalguard.engine.choices import Choices
from evalguard.engine.meter import Meter
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedComparison:
    """A finished comparison; its report is the one that was written, ``meter`` timed it.

    ``named`` is what the user called the two sides.
    """

    named: tuple[str, str]
    sources: tuple[Source, Source]
    scored: tuple[ScoredSide, ScoredSide]
    choices: Choices
    options: CompareOptions
    report: CompareReport
    meter: Meter | None = None

    @property
    def candidate(self) -> ModelSource | None:
        """The candidate, if it is a model whose settings can be changed."""
        source = self.sources[1]
        return source if isinstance(source, ModelSource) else None

    @property
    def folder(self) -> Path | None:
        """The run folder, if one was written."""
        return None if self.report.run_folder is None else Path(self.report.run_folder)
