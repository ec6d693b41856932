"""Problem: one thing that is wrong in a guard file, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from evalguard.errors import GuardFileError

# Nobody reads more at once; a file that is none at all has as many as it has lines.
SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One fault of a guard file. ``line`` counts from 1; 0 means the file as a whole."""

    label: str
    line: int
    message: str
    hint: str = ""

    @property
    def where(self) -> str:
        """``FILE:LINE``, or ``FILE`` for the file as a whole."""
        return f"{self.label}:{self.line}" if self.line else self.label


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one error that lists the problems in reading order, one a line.

    At most ``SHOWN`` are listed; the rest is counted. Nothing happens when there is none.

    Raises:
        GuardFileError: if there is any problem; ``where`` is the first one's place.
    """
    ordered = sorted(set(problems))
    if not ordered:
        return
    first, *others = ordered[:SHOWN]
    lines = [f"{problem.where}: {problem.message}" for problem in others]
    if len(ordered) > SHOWN:
        lines.append(f"and {len(ordered) - SHOWN} more")
    hints = dict.fromkeys(problem.hint for problem in ordered[:SHOWN] if problem.hint)
    raise GuardFileError(first.message, where=first.where, others=lines, hint="\n".join(hints))


def refuse(label: str, line: int, message: str, hint: str = "") -> NoReturn:
    """Raise the error of one problem after which nothing more of the file can be read.

    Raises:
        GuardFileError: always.
    """
    raise_problems([Problem(label=label, line=line, message=message, hint=hint)])
    raise AssertionError("one problem is always raised")
