"""Which trackers a comparison is sent to."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.reports.tracked_run import (
    SINKS,
    SinkName,
)
from evalguard.errors import UsageError, nearest
from evalguard.integrations.wandb_here import wandb_is_configured


def choose_sinks(names: Sequence[str], *, unasked: bool = True) -> tuple[SinkName, ...]:
    """Return where to send: the names, else W&B where it is configured.

    Args:
        unasked: whether that last one may be.
    """
    if not names:
        return ("wandb",) if unasked and wandb_is_configured() else ()
    return tuple(sink for sink in SINKS if sink in check_track(names))


NO_TRACKER = "none"


def check_track(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        UsageError: one is unknown, or "none" stands beside another.
    """
    known = (*SINKS, NO_TRACKER)
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no tracker '{name}'{nearest(name, known)}",
                hint=f"one of {', '.join(known)}",
            )
    if NO_TRACKER in names and len(set(names)) > 1:
        raise UsageError(
            f"track: none stands beside {', '.join(n for n in names if n != NO_TRACKER)}",
            hint="none means that nothing is sent anywhere",
        )
    return tuple(dict.fromkeys(names))
