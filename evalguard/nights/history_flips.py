"""Flips: which documents the candidate answers otherwise than on another night.

A document is broken where the candidate is worse on it than the base by at least one standard
deviation of the base's documents: for 0/1 metrics where only the base has it right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.nights.document_scores import DocumentScores, match_documents

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An earlier night on which documents were broken that broke again tonight.

    Attributes:
        run: number of its run.
        broken: documents that were broken then, among those that tonight has.
        again: of those, documents that broke anew tonight.
        by_chance: how many that would be if every document broke as easily as any other.
    """

    run: int
    broken: int
    again: int
    by_chance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDocuments:
    """The broken documents of a night, by what they were before (doc_ids, ascending).

    Attributes:
        n: documents of the night.
        still: broken on the night before, too. For a first night all others are ``new``.
        again: sound on the night before, and broken on one before that.
        new: never broken on a night before.
        repaired: broken on the night before and sound now.
        alike: the earlier night whose broken documents are most of those in ``again`` and ``new``;
            None where there is none.
    """

    n: int
    still: tuple[int, ...]
    again: tuple[int, ...]
    new: tuple[int, ...]
    repaired: tuple[int, ...]
    alike: Earlier | None

    @property
    def total(self) -> int:
        """How many are broken."""
        return len(self.still) + len(self.again) + len(self.new)


def broken(documents: DocumentScores) -> Mask:
    """Whether each document is broken, shape (n,)."""
    harm = documents.harm
    return np.asarray((harm > 0.0) & (harm >= documents.spread))


def broken_documents(
    tonight: DocumentScores, earlier: Mapping[int, DocumentScores]
) -> BrokenDocuments:
    """Sort tonight's broken documents by what they were on earlier nights.

    Args:
        earlier: documents by number of run, the oldest first; a document that an earlier night did
            not ask counts as sound then.
    """
    now = broken(tonight)
    before = {run: _on_tonight(tonight, night) for run, night in earlier.items()}
    last = next(reversed(before.values()), np.zeros_like(now))
    ever = np.any(np.stack([np.zeros_like(now), *before.values()]), axis=0)
    fresh = now & ~last
    return BrokenDocuments(
        n=tonight.n,
        still=_ids(tonight, now & last),
        again=_ids(tonight, fresh & ever),
        new=_ids(tonight, fresh & ~ever),
        repaired=_ids(tonight, last & ~now),
        alike=_most_alike(fresh, before),
    )


def _on_tonight(tonight: DocumentScores, night: DocumentScores) -> Mask:
    """Which of tonight's documents were broken on a night."""
    theirs, ours = match_documents(night, tonight)
    broken_mask = np.zeros(tonight.n, np.bool_)
    broken_mask[ours] = broken(night)[theirs]
    return broken_mask


def _most_alike(fresh: Mask, before: Mapping[int, Mask]) -> Earlier | None:
    """The night that shares most of what broke tonight; of several the latest."""
    fresh_count = int(np.count_nonzero(fresh))
    best: Earlier | None = None
    for run, mask in before.items():
        again = int(np.count_nonzero(fresh & mask))
        if again and (best is None or again >= best.again):
            count = int(np.count_nonzero(mask))
            best = Earlier(
                run=run,
                broken=count,
                again=again,
                by_chance=fresh_count * count / fresh.shape[0],
            )
    return best


def _ids(documents: DocumentScores, mask: Mask) -> tuple[int, ...]:
    return tuple(documents.doc_ids[mask].tolist())


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
    first_rows, second_rows = match_documents(first, second)
    worse = first.quality[first_rows] - second.quality[second_rows]
    doc_ids = second.doc_ids[second_rows]
    binary = first.binary and second.binary
    order = np.argsort(-np.abs(worse), kind="stable")[:most_moved]
    return DocumentFlips(
        shared=int(first_rows.shape[0]),
        only_first=first.n - int(first_rows.shape[0]),
        only_second=second.n - int(first_rows.shape[0]),
        same=int(np.count_nonzero(worse == 0.0)),
        lost=tuple(doc_ids[worse > 0.0].tolist()) if binary else None,
        won=tuple(doc_ids[worse < 0.0].tolist()) if binary else None,
        moved=tuple(
            Moved(doc_id=int(doc_ids[row]), worse=float(worse[row]))
            for row in order
            if worse[row] != 0.0
        ),
        base_moved=int(np.count_nonzero(first.base[first_rows] != second.base[second_rows])),
    )
