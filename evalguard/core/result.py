"""What a finished command gives to whoever called it from Python, and to the command line."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Result(ABC, Generic[R_co]):
    """A finished command. ``report`` holds everything; the properties are shortcuts to it."""

    report: R_co

    @property
    def exit_code(self) -> int:
        """What the command line ends with: what the report says."""
        code: int = self.report.exit_code  # type: ignore[attr-defined]
        return code

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the command's JSON document as plain data."""

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the command's JSON document as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @abstractmethod
    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the report."""
