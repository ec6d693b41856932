"""How the distinct pieces of a block are read, so that what they share is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil

from evalguard.models.hf.prefix_tree import PrefixTree, build_prefix_tree
from evalguard.models.hf.row_division import divide_into_rows, row_cost
from evalguard.models.hf.scored_tokens import InputTokens
from evalguard.models.hf.trunks import RowPieces, TrunkGroup, group_by_trunk

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
