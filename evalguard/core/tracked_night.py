"""TrackedNight: a night of comparisons, as a report on a tracker shows it."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.core.gate_state import GateState
from evalguard.core.verdict import DriftUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """What one pair came to; ``state`` is None for one that gave no report.

    ``url`` is its run at the tracker, "" where it is not known.
    """

    base: str
    candidate: str
    state: GateState | None
    sentence: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """One night: UTC time as ISO 8601 text, drift and its paired interval; None where unknown."""

    created: str
    drift: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightTrend:
    """One metric of one pair over nights, oldest first; ``unit`` is that of its drifts."""

    base: str
    candidate: str
    task: str
    metric: str
    points: tuple[TrendPoint, ...]
    unit: DriftUnit = "sigma"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedNight:
    """A night: its name is the group of its runs."""

    name: str
    verdicts: tuple[NightVerdict, ...]
    trends: tuple[NightTrend, ...] = ()
