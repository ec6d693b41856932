"""Guard files checked without loading a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalguard.config.guard import Guard
from evalguard.config.guard_search import load_guards
from evalguard.config.problems import raise_problems
from evalguard.errors import (
    GuardFileError,
)
from evalguard.report.words.plain_text import printable


def check_guards(files: Sequence[Path]) -> list[str]:
    """Return a line for each file: what it defines. Without files, those that are found are read.

    Raises:
        UsageError: no file is named, and there is none here.
        GuardFileError: a file cannot be used, or names a path that is not there, with every problem
            of every such file.
    """
    lines: list[str] = []
    errors: list[GuardFileError] = []
    for file in dict.fromkeys(files) or (None,):
        try:
            found = load_guards(file, cwd=Path.cwd(), allow_code=False).require_own()
            raise_problems(problem for guard in found.guards for problem in guard.absent)
        except GuardFileError as error:
            errors.append(error)
        else:
            lines += map(_guard_line, found.guards)
    if errors:
        raise _join_errors(errors)
    return lines


def _guard_line(guard: Guard) -> str:
    numbers = (
        (len(guard.variants), "model"),
        (len(guard.pairs), "pair"),
        (sum(len(variant.settings) for variant in guard.variants.values()), "setting"),
    )
    told = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers]
    return printable(f"{guard.label}: {', '.join(told)}")


def _join_errors(errors: Sequence[GuardFileError]) -> GuardFileError:
    first, *others = errors
    if not others:
        return first
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return GuardFileError(
        first.what,
        where=first.where,
        others=[*first.others, *map(str, others)],
        hint="\n".join(hints),
    )
