"""Searches to compare with, each on all documents: one at a time, bisection, delta debugging.

An assignment is bad if its drift is above ``limit`` sigma. Every assignment is measured once and
costs 1.05 full evaluations; one that cannot be built costs 0.05 and counts as not bad. The last two
find one minimal failing set, repair it, and start again until the candidate is not bad.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.bisect_planting import PlantedOracle
from evalguard.core.question import Untestable

LAUNCH = 0.05
Settings = tuple[str, ...]


class Judge:
    """Says whether an assignment is bad, and counts what it cost."""

    def __init__(self, oracle: PlantedOracle, settings: Settings, limit: float) -> None:
        self.cost = 0.0
        self._oracle, self._limit = oracle, limit
        self._known = {frozenset(): False, frozenset(settings): True}
        self._documents = np.arange(oracle.n_documents)

    def bad(self, settings: Settings) -> bool:
        """Whether exactly these settings at candidate drift beyond the limit."""
        key = frozenset(settings)
        if key not in self._known:
            self.cost += LAUNCH
            try:
                self._oracle.measure(key, self._documents)
            except Untestable:
                self._known[key] = False
            else:
                self.cost += 1.0
                self._known[key] = self._oracle.drift(key) > self._limit
        return self._known[key]


def one_at_a_time(judge: Judge, settings: Settings) -> set[str]:
    """Every setting alone."""
    return {one for one in settings if judge.bad((one,))}


def bisection(judge: Judge, settings: Settings) -> set[str]:
    """Keep the half that is bad; the first one if none is, as git bisect would; repeated."""
    return _repeated(judge, settings, _bisected)


def delta_debugging(judge: Judge, settings: Settings) -> set[str]:
    """ddmin (Zeller and Hildebrandt, 2002), repeated."""
    return _repeated(judge, settings, _ddmin)


def _repeated(
    judge: Judge, settings: Settings, once: Callable[[Judge, Settings], Settings]
) -> set[str]:
    found: set[str] = set()
    rest = settings
    while rest and judge.bad(rest):
        found |= set(once(judge, rest))
        rest = tuple(one for one in settings if one not in found)
    return found


def _bisected(judge: Judge, settings: Settings) -> Settings:
    while len(settings) > 1:
        half = settings[: len(settings) // 2]
        settings = half if judge.bad(half) else settings[len(half) :]
    return settings


def _ddmin(judge: Judge, settings: Settings) -> Settings:
    pieces = 2
    while len(settings) > 1:
        cut = [tuple(piece) for piece in np.array_split(np.array(settings), pieces)]
        rests = [tuple(one for one in settings if one not in piece) for piece in cut]
        bad = next((piece for piece in cut if judge.bad(piece)), None)
        rest = next((rest for rest in rests if judge.bad(rest)), None) if bad is None else None
        if bad is not None:
            settings, pieces = bad, 2
        elif rest is not None and pieces > 2:
            settings, pieces = rest, pieces - 1
        elif pieces < len(settings):
            pieces = min(2 * pieces, len(settings))
        else:
            break
    return settings
