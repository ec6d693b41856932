"""Bisection over settings: the culprits of a drift, what each costs, and the proof. Pure.

A name is loaded when it is first asked for: who imports one of its records needs no search.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalguard.bisect.search.find_culprits import (
        Recommendation,
        Trial,
        expected_evaluations,
        find_culprits,
        recommend,
    )
    from evalguard.bisect.search.search_result import (
        Accepted,
        BisectResult,
        Cleared,
        Culprit,
        Event,
        Expected,
        Outcome,
        Part,
        Probe,
        ProbeEnded,
        ProbeStarted,
        Suspect,
        Unit,
    )
    from evalguard.core.question import (
        BlockOracle,
        Oracle,
        ParallelOracle,
        Question,
        Refusal,
        Untestable,
        ValueOracle,
    )

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
    "Accepted": "evalguard.bisect.search.search_result",
    "Cleared": "evalguard.bisect.search.search_result",
    "Event": "evalguard.bisect.search.search_result",
    "Expected": "evalguard.bisect.search.search_result",
    "ProbeEnded": "evalguard.bisect.search.search_result",
    "ProbeStarted": "evalguard.bisect.search.search_result",
    "expected_evaluations": "evalguard.bisect.search.find_culprits",
    "find_culprits": "evalguard.bisect.search.find_culprits",
    "BlockOracle": "evalguard.core.question",
    "Oracle": "evalguard.core.question",
    "ParallelOracle": "evalguard.core.question",
    "Question": "evalguard.core.question",
    "Refusal": "evalguard.core.question",
    "Untestable": "evalguard.core.question",
    "ValueOracle": "evalguard.core.question",
    "Recommendation": "evalguard.bisect.search.find_culprits",
    "Trial": "evalguard.bisect.search.find_culprits",
    "recommend": "evalguard.bisect.search.find_culprits",
    "Outcome": "evalguard.bisect.search.search_result",
    "Probe": "evalguard.bisect.search.search_result",
    "BisectResult": "evalguard.bisect.search.search_result",
    "Culprit": "evalguard.bisect.search.search_result",
    "Part": "evalguard.bisect.search.search_result",
    "Suspect": "evalguard.bisect.search.search_result",
    "Unit": "evalguard.bisect.search.search_result",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalguard.bisect' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
