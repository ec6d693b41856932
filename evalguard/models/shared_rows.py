"""Which pieces of a block share a row, so that the least has to be computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from evalguard.models.prefix_tree import in_order, shared_length
from evalguard.models.scored_tokens import FedTokens

# At this width masked attention costs as much as everything else: every token is held against
# every other one of its row, relative or not. Measured with a small model (hidden 192) on a CPU;
# of a large one wide rows are cheaper than that.
_QUADRATIC_AT = 1536


def row_cost(width: int) -> float:
    """What a row of so many tokens costs, in tokens of a short one."""
    return width * (1 + width / _QUADRATIC_AT)


def shared_rows(pieces: Iterable[FedTokens], *, widest: int) -> list[list[FedTokens]]:
    """Divide distinct pieces into rows, each in order; a piece that shares too little is alone.

    Neighbours in the order of their tokens are put together, those that share most first, as long
    as one row costs less than two and is not wider than ``widest`` tokens (or than two pieces).
    """
    ordered = in_order(pieces)
    widths = [len(piece.ids) - 1 for piece in ordered]
    widest = max([widest, *(2 * width for width in widths)])
    shared = [shared_length(one.ids[:-1], two.ids[:-1]) for one, two in pairwise(ordered)]
    rows = _Rows(widths)
    for left in sorted(range(len(shared)), key=lambda left: -shared[left]):
        rows.join(left, shared[left], widest)
    return [ordered[start:end] for start, end in rows.ranges()]


class _Rows:
    """Neighbouring pieces in rows: joined, never taken apart."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._width = list(widths)  # of a row, at both of its ends
        self._other = list(range(len(widths)))  # the other end of the row that ends here

    def join(self, left: int, shared: int, widest: int) -> None:
        """Put the row that ends at ``left`` and the one after it together, if that pays."""
        first, second = self._width[left], self._width[left + 1]
        both = first + second - shared
        if shared and both <= widest and row_cost(both) <= row_cost(first) + row_cost(second):
            start, end = self._other[left], self._other[left + 1]
            self._other[start], self._other[end] = end, start
            self._width[start] = self._width[end] = both

    def ranges(self) -> Iterable[tuple[int, int]]:
        """Where each row begins and ends."""
        start = 0
        while start < len(self._other):
            end = self._other[start] + 1
            yield start, end
            start = end
