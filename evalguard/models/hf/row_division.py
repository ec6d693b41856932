"""Which pieces of a block share a row, so that the least has to be computed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from evalguard.models.hf.batch_cuts import join_neighbours
from evalguard.models.hf.prefix_tree import shared_prefix_length, sort_pieces
from evalguard.models.hf.scored_tokens import InputTokens

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
