"""Influence: which documents carry a drift."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluentialDocument:
    """A document and what it adds to a drift.

    Attributes:
        contribution: in sigma (to first order on a log scale), above 0 where the candidate is
            worse.
        share: its part of the whole drift, above 1 where others point the other way; None where the
            drift is 0.
    """

    task: str
    doc_id: int
    contribution: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """How a drift spreads over documents.

    Attributes:
        documents: those with the largest contributions in absolute value, largest first.
        moved: documents whose score differs at all.
        half: the fewest documents that make up half of the sum of absolute contributions.
        removed: the most influential 1% of the documents, at least one.
        sigma_without: sigma of the other documents, by the metric's own formula, in the unit of
            all documents.
    """

    documents: tuple[InfluentialDocument, ...]
    moved: int
    half: int
    removed: int
    sigma_without: float
