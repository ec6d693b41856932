"""Probe: one measurement of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evalguard.bisect.oracle import Refusal

LAUNCH = 0.05  # of a full evaluation: what it costs to launch an assignment

Outcome = Literal["scored"] | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement: documents scored under an assignment that had not been scored before.

    Attributes:
        settings: those at their candidate value, in the order in which they were declared.
        documents: how many were scored now.
        documents_so_far: how many are scored under this assignment in all.
        drift_sigma: drift of those, as reported, positive is worse; NaN if they were not scored.
        error_sigma: its standard error as an estimate for all documents; NaN likewise.
        outcome: scored, or why not: cannot_build, crashed, out_of_memory, timed_out, not_finite.
        untestable: the same in words; empty if scored.
        cost: in full evaluations: the share of the documents, and LAUNCH the first time.
    """

    settings: tuple[str, ...]
    documents: int
    documents_so_far: int
    drift_sigma: float
    error_sigma: float
    outcome: Outcome
    untestable: str
    cost: float
