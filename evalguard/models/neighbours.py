"""Neighbours in an order, put together where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

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
    other = list(range(len(of)))  # the other end of the range that ends here
    for left in sorted(range(len(shared)), key=lambda left: -shared[left]):
        both = join(of[left], of[left + 1], shared[left])
        if both is not None:
            start, end = other[left], other[left + 1]
            other[start], other[end] = end, start
            of[start] = of[end] = both
    ranges = []
    start = 0
    while start < len(of):
        ranges.append((start, other[start] + 1))
        start = other[start] + 1
    return ranges
