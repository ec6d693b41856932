"""PrefixTree: sequences that begin alike, laid out in one row with every shared token once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from evalguard.models.hf.attention_reach import AttentionReach
from evalguard.models.hf.batches import PackedBatch, PieceRead, join_neighbours
from evalguard.models.scored_tokens import InputTokens


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


# What one row for two has to save of the smaller one: a row that is shared needs a mask.
_LEAST_SAVING_OF_ROW = 0.2
# Room for continuations beside the longest piece, where that alone is as wide as a row may be.
_WIDTH_ALLOWANCE = 1.25
# At this width masked attention costs as much as everything else: every token is held against
# every other one of its row, relative or not. Measured with a small model (hidden 192) on a CPU;
# of a large one wide rows are cheaper than that.
_QUADRATIC_WIDTH = 1536


def row_cost(width: int, *, before: int = 0) -> float:
    """What a row of so many tokens costs, in tokens of a short one.

    Args:
        before: tokens before the row that all of it sees, computed already.
    """
    return width * (1 + (before + width) / _QUADRATIC_WIDTH)


def divide_into_rows(pieces: Iterable[InputTokens], *, widest: int) -> list[list[InputTokens]]:
    """Divide distinct pieces into rows, in the order of their tokens; some rows have one piece.

    Neighbours are put together, those that share most first, as long as one row costs clearly less
    than two and is not wider than ``widest`` tokens (or little wider than the longest piece).
    """
    ordered = sort_pieces(pieces)
    widths = [len(piece.ids) - 1 for piece in ordered]
    most = max([widest, *(int(_WIDTH_ALLOWANCE * width) for width in widths)])

    def join(first: int, second: int, shared: int) -> int | None:
        both = first + second - shared
        saved = row_cost(first) + row_cost(second) - row_cost(both)
        pays = saved >= _LEAST_SAVING_OF_ROW * row_cost(min(first, second))
        return both if pays and both <= most else None

    shared = [
        shared_prefix_length(first.ids[:-1], two.ids[:-1]) for first, two in pairwise(ordered)
    ]
    return [ordered[start:end] for start, end in join_neighbours(widths, shared, join)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeBatch(PackedBatch):
    """Trees side by side.

    Attributes:
        position_ids: (B, T); the place of each token in its piece.
        masks: (B, 1, T, S), additive or boolean, as transformers takes it, S being the tokens of
            the trunk and those of the row; one for each kind of layer where they differ.
        trunk: token ids before every row, read in a pass of their own.
    """

    position_ids: torch.Tensor
    masks: torch.Tensor | dict[str, torch.Tensor]
    trunk: tuple[int, ...] = ()


def build_tree_batch(trees: Sequence[PrefixTree], reach: AttentionReach) -> TreeBatch:
    """Put each tree into a row; what fills up a row sees itself only, and nothing sees it.

    All trees stand on the same trunk, or on none.
    """
    trunk = trees[0].trunk
    shape = (len(trees), max(tree.width for tree in trees))
    ids, depths = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    index = np.arange(shape[1])
    ends = np.repeat(index[None] + 1, shape[0], axis=0)
    reads: list[PieceRead] = []
    for row, tree in enumerate(trees):
        for of_all, own in ((ids, tree.ids), (depths, tree.depths), (ends, tree.ends)):
            of_all[row, : tree.width] = own
        reads += [
            PieceRead(piece=piece, row=row, positions=positions)
            for piece, positions in zip(tree.pieces, tree.reads, strict=True)
        ]
    seen = (index <= index[:, None]) & (index[:, None] < ends[:, None, :])
    of_trunk = np.ones((*shape, len(trunk)), dtype=np.bool_)
    trunk_depths = np.repeat(np.arange(len(trunk))[None], len(trees), axis=0)
    places = torch.from_numpy(depths)
    masks = reach.masks(
        torch.from_numpy(np.concatenate([of_trunk, seen], axis=2)),
        places,
        torch.from_numpy(np.concatenate([trunk_depths, depths], axis=1)),
    )
    return TreeBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=places,
        masks=masks,
        trunk=trunk,
        reads=tuple(reads),
    )


# A shorter one is not worth a forward pass of its own.
_SHORTEST_TRUNK = 64
RowPieces = list[InputTokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkGroup:
    """Rows that begin alike: ``trunk`` is the length of that beginning, 0 for a row by itself."""

    trunk: int
    rows: tuple[RowPieces, ...]


def group_by_trunk(rows: Sequence[RowPieces]) -> list[TrunkGroup]:
    """Put rows together whose common beginning is better read once, before all of them.

    Args:
        rows: as of ``divide_into_rows``, in the order of their tokens.
    """
    alone = [_JoinedRows(count=1, trunk=_longest_trunk(row)) for row in rows]
    shared = [shared_prefix_length(first[-1].ids, two[0].ids) for first, two in pairwise(rows)]
    ranges = join_neighbours(alone, shared, _JoinedRows.joined)
    groups = []
    for start, end in ranges:
        of = tuple(rows[start:end])
        groups.append(TrunkGroup(trunk=_common_trunk(of) if len(of) > 1 else 0, rows=of))
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedRows:
    count: int
    trunk: int  # the longest that these rows can have

    def joined(self, other: _JoinedRows, shared: int) -> _JoinedRows | None:
        """These rows with others, unless the longer trunks that they have by themselves save more.

        Reading a trunk of t tokens once for n rows saves (n - 1) t tokens.
        """
        trunk = min(shared, self.trunk, other.trunk)
        lost = (self.count - 1) * (self.trunk - trunk) + (other.count - 1) * (other.trunk - trunk)
        if trunk < _SHORTEST_TRUNK or lost >= trunk:
            return None
        return _JoinedRows(count=self.count + other.count, trunk=trunk)


def _longest_trunk(row: RowPieces) -> int:
    """The longest trunk of one row: it ends before the first token that is read of any piece."""
    first = min(len(piece.ids) - 1 - piece.n_scored for piece in row)
    return min(first, shared_prefix_length(row[0].ids, row[-1].ids))


def _common_trunk(rows: Sequence[RowPieces]) -> int:
    between = shared_prefix_length(rows[0][0].ids, rows[-1][-1].ids)
    return min(between, *(_longest_trunk(row) for row in rows))
