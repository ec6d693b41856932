"""PrefixTree: sequences that begin alike, laid out in one row with every shared token once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.models.hf.scored_tokens import InputTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Pieces in one row of tokens, in preorder: a token stands before all that follow it.

    A token is read by those below it only: index i sees index j if ``j <= i < ends[j]``. So each
    piece is one path through the row, and its tokens see what they would see if it were alone.

    Attributes:
        pieces: what is scored, in the order of their ids.
        trunk: tokens that all pieces begin with and that are not in the row: every index sees them.
        ids: token ids, shape (width,). A piece's last token is not fed: nothing is read after it.
        depths: place of each token in its piece, shape (width,).
        ends: index after the last token that sees this one, shape (width,).
        reads: for each piece the indices whose outputs predict its scored tokens, each of shape
            (n_scored,).
    """

    pieces: tuple[InputTokens, ...]
    trunk: tuple[int, ...] = ()
    ids: NDArray[np.int64]
    depths: NDArray[np.int64]
    ends: NDArray[np.int64]
    reads: tuple[NDArray[np.int64], ...]

    @property
    def width(self) -> int:
        """Number of tokens in the row."""
        return self.ids.size

    @property
    def length(self) -> int:
        """Number of tokens of the longest path."""
        return int(self.depths.max()) + 1

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which index (row) sees which (column), shape (width, width)."""
        index = np.arange(self.width)
        return (index <= index[:, None]) & (index[:, None] < self.ends)


def build_prefix_tree(pieces: Iterable[InputTokens], *, after: int = 0) -> PrefixTree:
    """Lay out distinct pieces in one row, whether they share anything or not.

    Args:
        pieces: each has at least one token before the scored ones.
        after: length of the trunk, a beginning of all pieces that ends before the first token whose
            output is read.
    """
    ordered = sort_pieces(pieces)
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    reads = []
    path: list[int] = []  # index of the token at each depth of the piece before
    before: Sequence[int] = ()
    for piece in ordered:
        fed = piece.ids[after:-1]
        shared = shared_prefix_length(before, fed)
        for index in path[shared:]:
            ends[index] = len(ids)
        path[shared:] = range(len(ids), len(ids) + len(fed) - shared)
        ids.extend(fed[shared:])
        depths.extend(range(after + shared, after + len(fed)))
        ends.extend([0] * (len(fed) - shared))
        reads.append(np.array(path[len(fed) - piece.n_scored :], dtype=np.int64))
        before = fed
    for index in path:
        ends[index] = len(ids)
    return PrefixTree(
        pieces=tuple(ordered),
        trunk=ordered[0].ids[:after],
        ids=np.array(ids, dtype=np.int64),
        depths=np.array(depths, dtype=np.int64),
        ends=np.array(ends, dtype=np.int64),
        reads=tuple(reads),
    )


def sort_pieces(pieces: Iterable[InputTokens]) -> list[InputTokens]:
    """Sort pieces by what is fed of them: each shares the most with its neighbours."""
    return sorted(pieces, key=lambda piece: (piece.ids[:-1], piece.ids[-1], piece.n_scored))


def shared_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens at the beginning in which two sequences agree."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # halves are compared at once: contexts may be long
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
