"""Probe: one measurement of a search."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH = 0.05  # of a full evaluation: what it costs to launch an assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One measurement: documents scored under an assignment that had not been scored before.

    Attributes:
        settings: those at their candidate value, in the order in which they were declared.
        documents: how many were scored now.
        documents_so_far: how many are scored under this assignment in all.
        drift_sigma: mean drift over those, in units of the yardstick, positive is worse; NaN if
            the assignment cannot be built.
        error_sigma: its standard error as an estimate for all documents; NaN likewise.
        untestable: why it cannot be built, or empty.
        cost: in full evaluations: the share of the documents, and LAUNCH the first time.
    """

    settings: tuple[str, ...]
    documents: int
    documents_so_far: int
    drift_sigma: float
    error_sigma: float
    untestable: str
    cost: float
