"""How long a pair may take: as said, else as its guard file says, else half a day."""

from __future__ import annotations

import math

from evalguard.errors import UsageError

PAIR_HOURS = 12.0
"""Longer than a night: it is there for what hangs, and ends no pair that would end."""

_HOUR = 3600.0


def pair_seconds(asked: float | None, guard: float | None) -> float:
    """The limit in seconds; infinite where it is 0.

    Args:
        asked: hours by the command line; None: not said.
        guard: hours by the guard file; None: not said.
    """
    hours = next(one for one in (asked, guard, PAIR_HOURS) if one is not None)
    return hours * _HOUR if hours else math.inf


def check_hours(hours: float | None) -> None:
    """Refuse what is not a number of hours.

    Raises:
        UsageError: it is below 0, or not finite.
    """
    if hours is not None and not 0.0 <= hours < math.inf:
        raise UsageError(f"pair_hours: {hours!r} is not a number of hours, 0 or more")


def hours_text(seconds: float) -> str:
    """A limit in words: "12 h", "45 min", "0.5 s"."""
    if seconds >= _HOUR:
        return f"{seconds / _HOUR:g} h"
    return f"{seconds / 60.0:g} min" if seconds >= 60.0 else f"{seconds:g} s"
