"""Which trackers a comparison is sent to."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.config.guard import Guard
from evalguard.core.reports.tracked_run import BUILT_IN_TRACKERS, NO_TRACKER
from evalguard.errors import UsageError
from evalguard.integrations.wandb_here import wandb_is_configured
from evalguard.plugins import TRACKERS


def choose_sinks(
    names: Sequence[str], guard: Guard | None = None, *, unasked: bool = True
) -> tuple[str, ...]:
    """Return where to send: the names, else the guard file's, else W&B where it is configured.

    Args:
        unasked: whether that last one may be.

    Raises:
        UsageError: as ``check_track``; or a guard file that was only found names a tracker of
            another package, which is code.
    """
    chosen = check_track(names) or (() if guard is None else _check_guard_track(guard))
    if not chosen:
        return ("wandb",) if unasked and wandb_is_configured() else ()
    own = [name for name in BUILT_IN_TRACKERS if name in chosen]
    return (*own, *_foreign(chosen))


def check_track(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        UsageError: one is unknown, or "none" stands beside another.
    """
    for name in names:
        if name != NO_TRACKER:
            TRACKERS.find(name)
    if NO_TRACKER in names and len(set(names)) > 1:
        raise UsageError(
            f"track: none stands beside {', '.join(n for n in names if n != NO_TRACKER)}",
            hint="none means that nothing is sent anywhere",
        )
    return tuple(dict.fromkeys(names))


def _check_guard_track(guard: Guard) -> tuple[str, ...]:
    names = check_track(guard.run.track or ())
    foreign = _foreign(names)
    if foreign and not guard.code_allowed:
        raise UsageError(
            f"{guard.label}: run.track names '{foreign[0]}', which runs code of another package "
            f"({TRACKERS.find(foreign[0]).origin}), and the file was found, not named",
            hint=f"if you trust it: --config {guard.label}, --allow-code, or --track {foreign[0]}",
        )
    return names


def _foreign(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in {*BUILT_IN_TRACKERS, NO_TRACKER})
