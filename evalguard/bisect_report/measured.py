"""Measured: the measurements of a search, and assignments that could not be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalguard.bisect.oracle import Refusal
    from evalguard.bisect.probe import Outcome as ProbeOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UntestableAssignment:
    """Settings that, together at their candidate value and all others at reference, cannot run.

    ``reason`` says why in words, ``outcome`` in one of a few.
    """

    settings: tuple[str, ...]
    outcome: Refusal
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement of a search; what was measured before a search started is none of its own.

    Attributes:
        settings: those at their candidate value, all others at reference.
        documents: how many were scored now, ``documents_so_far`` in all under this assignment.
        drift_sigma: of those, positive is worse, with its standard error ``error_sigma`` as an
            estimate for all documents; None if they were not scored.
        outcome: scored, or why not in one of a few words; ``reason`` says why, "" if scored.
        cost: in full evaluations.
    """

    settings: tuple[str, ...]
    documents: int
    documents_so_far: int
    drift_sigma: float | None
    error_sigma: float | None
    outcome: ProbeOutcome
    reason: str = ""
    cost: float
