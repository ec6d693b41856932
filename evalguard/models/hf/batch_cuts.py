"""Where a list of sequences, sorted by length, is cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np


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
