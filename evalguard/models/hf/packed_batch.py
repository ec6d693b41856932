"""PackedBatch: the unit of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from evalguard.models.hf.scored_tokens import InputTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceRead:
    """Where the answers for one piece stand in a batch.

    ``positions``, shape (n_scored,), are the places in ``row`` whose outputs predict the scored
    tokens, in reading order.
    """

    piece: InputTokens
    row: int
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One forward pass and where its answers stand.

    Rows are read causally, so that padding on the right needs no mask.

    Attributes:
        input_ids: (B, T) int64, padded on the right.
        reads: one for each piece.
    """

    input_ids: torch.Tensor
    reads: tuple[PieceRead, ...]

    @property
    def n_read(self) -> int:
        """Number of places that are read."""
        return sum(len(read.positions) for read in self.reads)

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and positions of all reads after one another, each of shape (N,)."""
        counts = [len(read.positions) for read in self.reads]
        rows = np.repeat(np.array([read.row for read in self.reads], dtype=np.int64), counts)
        return rows, np.concatenate([read.positions for read in self.reads])

    @property
    def targets(self) -> NDArray[np.int64]:
        """The tokens that are scored at those places, shape (N,)."""
        return np.concatenate([read.piece.scored_ids for read in self.reads])


def pad_batch(pieces: Sequence[InputTokens]) -> PackedBatch:
    """Put each piece into a row of its own; the last token of a piece is only predicted."""
    width = max(len(piece.ids) for piece in pieces) - 1
    ids = np.zeros((len(pieces), width), dtype=np.int64)
    reads = []
    for row, piece in enumerate(pieces):
        end = len(piece.ids) - 1
        ids[row, :end] = piece.ids[:-1]
        positions = np.arange(end - piece.n_scored, end)
        reads.append(PieceRead(piece=piece, row=row, positions=positions))
    return PackedBatch(input_ids=torch.from_numpy(ids), reads=tuple(reads))
