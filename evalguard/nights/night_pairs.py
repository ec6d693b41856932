"""The pairs of a night: which there are, and how much time each has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from evalguard.config.guard import Guard, GuardSet
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions
from evalguard.core.settings import digest_of
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
    hours = next(value for value in (asked, guard, PAIR_HOURS) if value is not None)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPair:
    """One pair; ``bisects`` says when its settings are searched.

    ``seconds`` are those that it may take, and its bisection again.
    """

    base: str
    candidate: str
    guard: Guard
    bisects: str
    seconds: float = math.inf

    @property
    def names(self) -> tuple[str, str]:
        """Names of base and candidate."""
        return self.base, self.candidate

    @property
    def declares_settings(self) -> bool:
        """Whether the candidate declares settings in the guard file."""
        variant = self.guard.variants.get(self.candidate)
        return variant is not None and bool(variant.settings)


def list_pairs(
    options: CompareOptions, cwd: Path, *, hours: float | None = None
) -> tuple[GuardSet, tuple[NightPair, ...]]:
    """Every pair of the guard files, each once, in their order.

    Args:
        hours: that each may take; None: as its guard file says.

    Raises:
        GuardFileError: a guard file cannot be read.
        UsageError: there is none here, or they have no pairs.
    """
    guards = load_guards(options.config, cwd=cwd, allow_code=options.allow_code).require_own()
    pairs = {
        (pair.base, pair.candidate): NightPair(
            base=pair.base,
            candidate=pair.candidate,
            guard=guard,
            bisects=options.bisect or guard.run.bisect or "auto",
            seconds=pair_seconds(hours, guard.run.pair_hours),
        )
        for guard in guards.guards
        for pair in guard.pairs
    }
    if not pairs:
        raise UsageError(
            f"{guards.where} has no pairs, so there is nothing to compare",
            hint="pairs: [{base: A, cand: B}]",
        )
    return guards, tuple(pairs.values())


def guards_digest(guards: GuardSet) -> str:
    """Digest of what stands in the guard files: another content is another night."""
    texts = [
        [str(guard.file), guard.file.read_bytes().decode("utf-8", "backslashreplace")]
        for guard in guards.guards
    ]
    return digest_of(texts)
