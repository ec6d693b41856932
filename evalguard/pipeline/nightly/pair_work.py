"""PairWork: one thing to do for a pair, as plain data for the process that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalguard.night_report import PairNight
from evalguard.pipeline.nightly.told_pair import read_pair, told_pair
from evalguard.pipeline.options import CompareOptions, make_options
from evalguard.pipeline.told_options import told_options
from evalguard.settings import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PairWork:
    """Compare a pair or, where its verdict is given, search the settings that made it.

    Attributes:
        cwd: folder that names of models and files start at.
    """

    base: str
    candidate: str
    options: CompareOptions
    cwd: Path
    verdict: PairNight | None = None

    @property
    def doing(self) -> str:
        """What is done, for "... while it was compared"."""
        return "compared" if self.verdict is None else "bisected"

    def told(self) -> dict[str, Value]:
        """The work as JSON values."""
        return {
            "base": self.base,
            "candidate": self.candidate,
            "options": told_options(self.options),
            "cwd": str(self.cwd),
            "verdict": None if self.verdict is None else told_pair(self.verdict),
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> PairWork:
        """Read back what ``told`` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        verdict = told["verdict"]
        return cls(
            base=told["base"],
            candidate=told["candidate"],
            options=make_options(None, **told["options"]),
            cwd=Path(told["cwd"]),
            verdict=None if verdict is None else read_pair(verdict),
        )
