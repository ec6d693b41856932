"""Which history file is meant, and which of its runs: by option, guard file or name of a run."""

from __future__ import annotations

from pathlib import Path

from evalguard.config.guard import Guard, GuardSet
from evalguard.config.options import NO_HISTORY, CompareOptions
from evalguard.errors import UsageError


def choose_history_file(guard: Guard | None, options: CompareOptions) -> Path | None:
    """The file that a comparison adds its run to; None for none.

    Raises:
        UsageError: a guard file that was only found names a file outside its own folder.
    """
    if options.history is not None:
        return None if options.history == NO_HISTORY else options.history.expanduser()
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
    """The history that a guard file names, from its own folder on; None for none.

    Raises:
        UsageError: it lies elsewhere, and the file was only found: no stranger's guard file writes
            into another folder than its own.
    """
    named = guard.run.history
    if named is None or named == NO_HISTORY:
        return None
    folder = guard.file.parent
    path = (folder / named.expanduser()).absolute()
    if not guard.code_allowed and not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{guard.label}: run.history lies outside the folder of the guard file ({path})",
            hint=f"--config {guard.label} trusts it, or name the history with --history",
        )
    return path
