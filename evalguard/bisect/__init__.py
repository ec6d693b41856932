"""Bisection over settings: the culprits of a drift, what each costs, and the proof. Pure."""

from __future__ import annotations

from evalguard.bisect.events import Accepted, Cleared, Event, Expected, ProbeEnded, ProbeStarted
from evalguard.bisect.find import expected_evaluations, find_culprits
from evalguard.bisect.oracle import (
    BlockOracle,
    Oracle,
    ParallelOracle,
    Question,
    Refusal,
    Untestable,
    ValueOracle,
)
from evalguard.bisect.recommendation import Recommendation, Trial, recommend
from evalguard.bisect.search_probe import Outcome, Probe
from evalguard.bisect.search_result import BisectResult, Culprit, Part, Suspect
from evalguard.bisect.yardstick import Unit

__all__ = [
    "Accepted",
    "BisectResult",
    "BlockOracle",
    "Cleared",
    "Culprit",
    "Event",
    "Expected",
    "Oracle",
    "Outcome",
    "ParallelOracle",
    "Part",
    "Probe",
    "ProbeEnded",
    "ProbeStarted",
    "Question",
    "Recommendation",
    "Refusal",
    "Suspect",
    "Trial",
    "Unit",
    "Untestable",
    "ValueOracle",
    "expected_evaluations",
    "find_culprits",
    "recommend",
]
