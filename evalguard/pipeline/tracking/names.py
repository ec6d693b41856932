"""Names of trackers, as an option or a guard file gives them."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.errors import UsageError, nearest
from evalguard.tracked_run import SINKS

NONE = "none"


def checked_track(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        UsageError: one is unknown, or "none" stands beside another.
    """
    known = (*SINKS, NONE)
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no tracker '{name}'{nearest(name, known)}",
                hint=f"one of {', '.join(known)}",
            )
    if NONE in names and len(set(names)) > 1:
        raise UsageError(
            f"track: none stands beside {', '.join(n for n in names if n != NONE)}",
            hint="none means that nothing is sent anywhere",
        )
    return tuple(dict.fromkeys(names))
