"""Where a list of sequences, sorted by length, is cut into batches."""

from __future__ import annotations

from collections.abc import Sequence

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
