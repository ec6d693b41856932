"""PrefixTree: sequences that begin alike, laid out in one row with every shared token once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from evalguard.models.hf.batch_cuts import join_neighbours
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


# Which pieces of a block share a row, so that the least has to be computed.


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

    shared = [shared_prefix_length(one.ids[:-1], two.ids[:-1]) for one, two in pairwise(ordered)]
    return [ordered[start:end] for start, end in join_neighbours(widths, shared, join)]


# How the distinct pieces of a block are read, so that what they share is read once.


# A trunk is read first only if that saves as much: masks and a forward pass cost something, too.
_MOST_COST_WITH_TRUNK = 0.8

BatchCut = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    """Forward passes over trees, and the pieces that share too little with any other.

    Attributes:
        passes: the trees of each pass; all of one pass stand on one trunk, or on none.
        alone: pieces for plain batches.
    """

    passes: tuple[tuple[PrefixTree, ...], ...]
    alone: tuple[InputTokens, ...]


def plan_sharing(
    pieces: Iterable[InputTokens], *, widest: int, cut: BatchCut, trunks: bool = True
) -> SharingPlan:
    """Plan forward passes over distinct pieces; a function of their token ids alone.

    Args:
        widest: tokens of a row; one with a long piece may be wider.
        cut: from what rows count against the budget of a pass, the largest first, to the numbers
            of rows in each pass.
        trunks: whether what many rows begin with may be read before them.
    """
    rows = divide_into_rows(pieces, widest=widest)
    found = group_by_trunk(rows) if trunks else [TrunkGroup(trunk=0, rows=tuple(rows))]
    standing: list[tuple[PrefixTree, ...]] = []
    free: list[RowPieces] = []
    for grove in found:
        if grove.trunk and _trunk_pays_off(grove):
            standing += _passes_on_trunk(grove, cut)
        else:
            free += grove.rows
    trees = [build_prefix_tree(row) for row in free if len(row) > 1]
    alone = tuple(row[0] for row in free if len(row) == 1)
    return SharingPlan(passes=(*standing, *_passes(trees, cut)), alone=alone)


def _passes(trees: Sequence[PrefixTree], cut: BatchCut) -> Iterator[tuple[PrefixTree, ...]]:
    """Trees of about the same width side by side, the widest first."""
    ordered = sorted(trees, key=lambda tree: (-tree.width, tree.pieces[0].ids))
    sizes = cut([ceil(row_cost(tree.width)) for tree in ordered])
    for start, end in _ranges(sizes):
        yield tuple(ordered[start:end])


def _passes_on_trunk(grove: TrunkGroup, cut: BatchCut) -> Iterator[tuple[PrefixTree, ...]]:
    """Rows on one trunk, several to a pass: in one row, so that the trunk is there once."""
    trunk = grove.trunk
    of_width = [(build_prefix_tree(row, after=trunk).width, row) for row in grove.rows]
    of_width.sort(key=lambda one: (-one[0], one[1][0].ids))
    sizes = cut([ceil(row_cost(width, before=trunk)) for width, _ in of_width])
    for start, end in _ranges(sizes):
        together = [piece for _, row in of_width[start:end] for piece in row]
        yield (build_prefix_tree(together, after=trunk),)


def _ranges(sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    return pairwise(accumulate(sizes, initial=0))


def _trunk_pays_off(grove: TrunkGroup) -> bool:
    """Whether a trunk that is read first saves enough."""
    trunk, widths = grove.trunk, [build_prefix_tree(row).width for row in grove.rows]
    together = row_cost(trunk) + sum(row_cost(width - trunk, before=trunk) for width in widths)
    return together <= _MOST_COST_WITH_TRUNK * sum(row_cost(width) for width in widths)


# Trunks: long beginnings that many rows have in common, as the examples of few-shot prompts.


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
    shared = [shared_prefix_length(one[-1].ids, two[0].ids) for one, two in pairwise(rows)]
    ranges = join_neighbours(alone, shared, _JoinedRows.joined)
    found = []
    for start, end in ranges:
        of = tuple(rows[start:end])
        found.append(TrunkGroup(trunk=_common_trunk(of) if len(of) > 1 else 0, rows=of))
    return found


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
