"""How a run of a history is named: latest, latest~2, 17, 2026-11-20."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evalguard.core.history_night import NightRun
from evalguard.errors import UsageError

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
