"""Bisection over settings: who makes a candidate drift, what each costs, and the proof."""

from evalguard.bisect.events import Accepted, Cleared, Event, Expected, ProbeEnded, ProbeStarted
from evalguard.bisect.expected_cost import expected_evaluations
from evalguard.bisect.find import find_culprits
from evalguard.bisect.oracle import (
    BlockOracle,
    Oracle,
    ParallelOracle,
    Question,
    Refusal,
    Untestable,
    ValueOracle,
)
from evalguard.bisect.probe import Outcome, Probe
from evalguard.bisect.recommendation import Recommendation, Trial, recommend
from evalguard.bisect.result import BisectResult, Culprit, Part, Suspect
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
