"""Bisection over settings: the culprits of a drift, what each costs, and the proof. Pure.

A name is loaded when it is first asked for: who imports one of its records needs no search.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "Accepted": "evalguard.bisect.events",
    "Cleared": "evalguard.bisect.events",
    "Event": "evalguard.bisect.events",
    "Expected": "evalguard.bisect.events",
    "ProbeEnded": "evalguard.bisect.events",
    "ProbeStarted": "evalguard.bisect.events",
    "expected_evaluations": "evalguard.bisect.find",
    "find_culprits": "evalguard.bisect.find",
    "BlockOracle": "evalguard.bisect.oracle",
    "Oracle": "evalguard.bisect.oracle",
    "ParallelOracle": "evalguard.bisect.oracle",
    "Question": "evalguard.bisect.oracle",
    "Refusal": "evalguard.bisect.oracle",
    "Untestable": "evalguard.bisect.oracle",
    "ValueOracle": "evalguard.bisect.oracle",
    "Recommendation": "evalguard.bisect.recommendation",
    "Trial": "evalguard.bisect.recommendation",
    "recommend": "evalguard.bisect.recommendation",
    "Outcome": "evalguard.bisect.search_probe",
    "Probe": "evalguard.bisect.search_probe",
    "BisectResult": "evalguard.bisect.search_result",
    "Culprit": "evalguard.bisect.search_result",
    "Part": "evalguard.bisect.search_result",
    "Suspect": "evalguard.bisect.search_result",
    "Unit": "evalguard.bisect.yardstick",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalguard.bisect' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
