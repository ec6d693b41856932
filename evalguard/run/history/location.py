"""Which history file is meant, and which of its runs: by option, guard file or name of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evalguard.config.guard import Guard, GuardSet
from evalguard.core.history import NightRun
from evalguard.errors import UsageError
from evalguard.run.options import CompareOptions


def choose_history_file(guard: Guard | None, options: CompareOptions) -> Path | None:
    """The file that a comparison adds its run to; None for none.

    Raises:
        UsageError: a guard file that was only found names a file outside its own folder.
    """
    if not options.use_history:
        return None
    if options.history is not None:
        return options.history.expanduser()
    return None if guard is None else guard_history_file(guard)


def shared_history_file(guards: GuardSet) -> Path | None:
    """The one history that guard files name; None where none does.

    Raises:
        UsageError: they name several.
    """
    named = dict.fromkeys(filter(None, map(guard_history_file, guards.guards)))
    if len(named) > 1:
        raise UsageError(
            f"the guard files name several histories: {', '.join(map(str, named))}",
            hint="name one with --history",
        )
    return next(iter(named), None)


def guard_history_file(guard: Guard) -> Path | None:
    """The history that a guard file names, from its own folder on.

    Raises:
        UsageError: it lies elsewhere, and the file was only found: no stranger's guard file writes
            into another folder than its own.
    """
    if guard.run.history is None:
        return None
    folder = guard.file.parent
    path = (folder / Path(guard.run.history).expanduser()).absolute()
    if not guard.code_allowed and not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{guard.label}: run.history lies outside the folder of the guard file ({path})",
            hint=f"--config {guard.label} trusts it, or name the history with --history",
        )
    return path


# How a run of a history is named: latest, latest~2, 17, 2026-11-20.


_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RUN_NAME_HINT = (
    "latest, latest~1 (the one before), a number of `evalguard history list`, or a date"
)


def find_named_run(name: str, runs: Sequence[NightRun]) -> NightRun:
    """The run that a name means among a pair's, which are in order of time.

    ``latest~K`` is K runs before the latest; digits are a run's number; a date, or how
    a time begins (2026-11-20T03), means the latest run of that time.

    Raises:
        UsageError: there is no such run.
    """
    back = _LATEST.fullmatch(name)
    if back is not None:
        steps = int(back[1] or 0)
        if steps < len(runs):
            return runs[len(runs) - 1 - steps]
        raise UsageError(
            f"there is no run {name}: the pair has {len(runs)} runs", hint=_RUN_NAME_HINT
        )
    if _NUMBER.fullmatch(name):
        found = [run for run in runs if run.number == int(name)]
    else:
        found = [run for run in runs if name and run.created.startswith(name)]
    if not found:
        raise UsageError(f"the pair has no run '{name}'", hint=_RUN_NAME_HINT)
    return found[-1]
