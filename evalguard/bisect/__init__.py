"""Bisection over settings: who makes a candidate drift, what each costs, and the proof."""

from evalguard.bisect.events import Accepted, Cleared, Event, Expected, ProbeEnded, ProbeStarted
from evalguard.bisect.find import find_culprits
from evalguard.bisect.oracle import Oracle, Untestable
from evalguard.bisect.probe import Probe
from evalguard.bisect.result import BisectResult, Culprit, Part, Suspect

__all__ = [
    "Accepted",
    "BisectResult",
    "Cleared",
    "Culprit",
    "Event",
    "Expected",
    "Oracle",
    "Part",
    "Probe",
    "ProbeEnded",
    "ProbeStarted",
    "Suspect",
    "Untestable",
    "find_culprits",
]
