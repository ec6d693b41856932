"""Flips: which documents the candidate answers otherwise than on another night."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.core.document_scores import DocumentScores, match_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A document, and by how much the candidate scores it worse on the second night.

    ``worse`` is in the unit of the scores: nats for log-likelihoods, 1 for a right answer lost.
    """

    doc_id: int
    worse: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFlips:
    """The candidate on two nights, document by document.

    Attributes:
        shared: documents that both nights have; ``only_first``, ``only_second`` the others.
        same: of the shared ones, those with the same score to the last bit.
        lost, won: documents (doc_id of the second night) that the candidate had right on the first,
            on the second night only; None for metrics that are not 0/1.
        moved: the shared documents that changed most, the largest change first.
        base_moved: shared documents that the base scores otherwise: then it is another base, too.
    """

    shared: int
    only_first: int
    only_second: int
    same: int
    lost: tuple[int, ...] | None
    won: tuple[int, ...] | None
    moved: tuple[Moved, ...]
    base_moved: int


def flips(first: DocumentScores, second: DocumentScores, *, most_moved: int = 10) -> DocumentFlips:
    """Compare the candidate of two nights on the documents that both have."""
    one, other = match_documents(first, second)
    worse = first.quality[one] - second.quality[other]
    doc_ids = second.doc_ids[other]
    binary = first.binary and second.binary
    order = np.argsort(-np.abs(worse), kind="stable")[:most_moved]
    return DocumentFlips(
        shared=int(one.shape[0]),
        only_first=first.n - int(one.shape[0]),
        only_second=second.n - int(one.shape[0]),
        same=int(np.count_nonzero(worse == 0.0)),
        lost=tuple(doc_ids[worse > 0.0].tolist()) if binary else None,
        won=tuple(doc_ids[worse < 0.0].tolist()) if binary else None,
        moved=tuple(
            Moved(doc_id=int(doc_ids[row]), worse=float(worse[row]))
            for row in order
            if worse[row] != 0.0
        ),
        base_moved=int(np.count_nonzero(first.base[one] != second.base[other])),
    )
