"""The same documents in two nights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalguard.history.documents import DocumentScores, Prints

Rows = NDArray[np.int64]


def matched(first: DocumentScores, second: DocumentScores) -> tuple[Rows, Rows]:
    """Rows of the documents that both nights have, in the second's order, shapes (m,).

    Documents are the same by the fingerprint of their content. Those of one content (a text that a
    task asks twice) are told apart by their order.
    """
    if np.array_equal(first.prints, second.prints):
        rows = np.arange(first.n)
        return rows, rows
    ours, theirs = identities(first.prints), identities(second.prints)
    _, one, other = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    order = np.argsort(other, kind="stable")
    return one[order], other[order]


def identities(prints: Prints) -> NDArray[np.void]:
    """Fingerprint and how often it came before, as one sortable value each, shape (n,)."""
    order = np.argsort(prints, kind="stable")
    ordered = prints[order]
    start = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if prints.shape[0] else order > 0
    places = np.arange(prints.shape[0])
    times = np.empty(prints.shape[0], np.int64)
    times[order] = places - np.maximum.accumulate(np.where(start, places, 0))
    pairs = np.empty(prints.shape[0], [("print", np.uint64), ("times", np.int64)])
    pairs["print"], pairs["times"] = prints, times
    return pairs
