"""Batches: cut to a size, packed without padding, and moved to the device that computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from evalguard.models.scored_tokens import InputTokens


def cut_by_number(count: int, size: int) -> list[int]:
    """Return the sizes of batches of ``size`` sequences; the last one may be smaller."""
    return [min(size, count - start) for start in range(0, count, size)]


def cut_by_tokens(lengths: Sequence[int], *, budget: int, per_batch: float) -> list[int]:
    """Return the sizes of the batches that cost least, in order.

    A batch costs its padded tokens (its number of sequences times the length of its first one) and
    ``per_batch``, what a forward pass costs beside its tokens. No batch has more padded tokens than
    ``budget``, unless it is one sequence alone. Exact, by dynamic programming over the cuts: the
    cheapest way to the first i sequences ends with a batch j..i, after the cheapest way to j.

    Args:
        lengths: of the sequences in tokens, the longest first; 1 or more.
        budget: most padded tokens of a batch.
        per_batch: in tokens.

    Raises:
        ValueError: lengths that are not sorted.
    """
    longest = np.asarray(lengths, dtype=np.int64)
    if (np.diff(longest) > 0).any():
        raise ValueError("lengths are to be sorted, the longest first")
    count = len(longest)
    cost = np.zeros(count + 1)
    came_from = np.zeros(count + 1, dtype=np.int64)
    first = 0  # the earliest start of a batch that ends at i
    for i in range(1, count + 1):
        while first < i - 1 and (i - first) * longest[first] > budget:
            first += 1
        starts = np.arange(first, i)
        ways = cost[first:i] + (i - starts) * longest[first:i]
        best = int(ways.argmin())
        came_from[i] = first + best
        cost[i] = ways[best] + per_batch
    sizes = []
    end = count
    while end:
        sizes.append(end - int(came_from[end]))
        end = int(came_from[end])
    return sizes[::-1]


T = TypeVar("T")


def join_neighbours(
    items: Sequence[T], shared: Sequence[int], join: Callable[[T, T, int], T | None]
) -> list[tuple[int, int]]:
    """Put neighbours together, those that share most first; what is together stays together.

    Args:
        items: what stands in the order.
        shared: how much each shares with the next one; of two ranges of neighbours that is what
            the last of the first range shares with the first of the second.
        join: of two neighbouring items, or ranges of them, and what they share: what they are
            together, or None if they are to stay apart.

    Returns:
        First index, and index after the last, of every range.
    """
    of = list(items)  # of a range, at both of its ends
    other_end = list(range(len(of)))  # the other end of the range that ends here
    for index in sorted(range(len(shared)), key=lambda index: -shared[index]):
        both = join(of[index], of[index + 1], shared[index])
        if both is not None:
            start, end = other_end[index], other_end[index + 1]
            other_end[start], other_end[end] = end, start
            of[start] = of[end] = both
    ranges = []
    start = 0
    while start < len(of):
        ranges.append((start, other_end[start] + 1))
        start = other_end[start] + 1
    return ranges


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceBatch:
    """A ``PackedBatch`` and its tensors on a device.

    Attributes:
        batch: where it comes from.
        input_ids: (B, T).
        places: rows and positions of what is read, shape (2, N).
        targets: the tokens that are scored there, shape (N,).
    """

    batch: PackedBatch
    input_ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> DeviceBatch:
        """Move a batch; a GPU is not waited for."""
        return cls(
            batch=batch,
            input_ids=move_tensor(batch.input_ids, device),
            places=move_tensor(torch.from_numpy(np.stack(batch.places)), device),
            targets=move_tensor(torch.from_numpy(batch.targets), device),
        )

    def at_places(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return what stands at the places that are read, shape (N, width).

        Args:
            outputs: of the model, shape (B, T or more, width): prompt tuning puts tokens of its own
                before the text.
        """
        return outputs[self._index(outputs.shape, outputs.device)]

    def put(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return rows at the places that are read, of zeros elsewhere.

        Args:
            rows: shape (N, width).
            shape: (B, T or more, any) of the outputs that ``at_places`` took the rows from.
        """
        outputs = rows.new_zeros((*shape[:2], rows.shape[-1]))
        outputs[self._index(outputs.shape, outputs.device)] = rows
        return outputs

    def _index(
        self, shape: Sequence[int], device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, positions = self.places.to(device)
        return rows, positions + (shape[1] - self.input_ids.shape[1])


def move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device."""
    if device.type != "cuda":
        return tensor.to(device)
    # From pinned memory a copy needs neither the GPU to finish nor this process to wait.
    return tensor.pin_memory().to(device, non_blocking=True)
