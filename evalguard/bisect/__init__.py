"""Bisection over settings: the culprits of a drift, what each costs, and the proof. Pure."""

from __future__ import annotations

from evalguard.bisect.find import expected_evaluations, find_culprits
from evalguard.bisect.measurement import Unit
from evalguard.bisect.oracle import (
    Accepted,
    BlockOracle,
    Cleared,
    Event,
    Expected,
    Oracle,
    Outcome,
    ParallelOracle,
    Probe,
    ProbeEnded,
    ProbeStarted,
    Question,
    Refusal,
    Untestable,
    ValueOracle,
)
from evalguard.bisect.recommendation import Recommendation, Trial, recommend
from evalguard.bisect.result import BisectResult, Culprit, Part, Suspect

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
