"""The most probable tokens of each row, and how many of them two rows share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import Row

Ids = NDArray[np.int64]

# In smaller blocks the k-th largest value itself is found as fast.
_SMALLEST_BLOCK = 8
# Numbers whose maxima are taken in one call.
_AT_ONCE = 2**20
NO_TOKEN = -1


def top_tokens(rows: Row, k: int) -> Ids:
    """The k most probable tokens of each row, most probable first, shape (T, k).

    Equal probabilities: the smaller token id first, so that the answer depends on the values only.
    A row that holds NaN has no most probable token: all -1.

    The k-th largest of the maxima of blocks of tokens is at most the k-th largest value, so that
    only the few tokens at or above it need sorting. With blocks of sqrt(V / k) tokens those that
    are looked at twice, k blocks, are as many as the maxima over k; where that makes small blocks,
    the k-th largest value itself is found.

    Args:
        rows: shape (T, V), no matter whether logits or log-probabilities.
        k: from 1 to V.
    """
    positions, vocabulary = rows.shape
    tops = np.full((positions, k), NO_TOKEN, dtype=np.int64)
    step = max(1, _AT_ONCE // vocabulary)
    block = 1 << (math.isqrt(vocabulary // k).bit_length() - 1)
    for start in range(0, positions, step):
        part = rows[start : start + step]
        if k == 1:
            best = part.argmax(axis=1)
            sound = ~np.isnan(part[np.arange(len(part)), best])
            tops[start : start + step, 0] = np.where(sound, best, NO_TOKEN)
            continue
        if block < _SMALLEST_BLOCK:
            row, token = _at_least_itself(part, k)
        else:
            row, token = _at_least_in_blocks(part, k, block)
        counts = np.bincount(row, minlength=len(part))
        first = np.cumsum(counts) - counts
        # Rows side by side, each filled up to the longest with what comes last.
        values = np.full((len(part), max(counts.max(), k)), np.inf, dtype=part.dtype)
        values[row, np.arange(len(row)) - first[row]] = -part[row, token]
        order = np.argsort(values, axis=1, kind="stable")[:, :k]
        sound = np.flatnonzero(counts)
        tops[start + sound] = token[first[sound, None] + order[sound]]
    return tops


def shared_tokens(one: Ids, other: Ids) -> Ids:
    """How many tokens of ``one`` are among those of ``other``, row by row, shape (T,)."""
    same = (one[:, :, None] == other[:, None, :]) & (one[:, :, None] != NO_TOKEN)
    counts: Ids = np.count_nonzero(same, axis=(1, 2)).astype(np.int64)
    return counts


def _at_least_itself(rows: Row, k: int) -> tuple[Ids, Ids]:
    """Rows and tokens as probable as the k-th, in order; none of a row that holds NaN."""
    last = rows.shape[1] - k
    floors: Any = np.partition(rows, last, axis=1)[:, last]
    floors[np.isnan(rows.max(axis=1))] = np.nan
    return _true_places(rows >= floors[:, None])


def _at_least_in_blocks(rows: Row, k: int, block: int) -> tuple[Ids, Ids]:
    """Those as probable as a lower bound of the k-th, likewise; only their blocks are read."""
    blocks = rows.shape[1] // block
    maxima = _maxima(rows, block)
    last = maxima.shape[1] - k
    floors: Any = np.partition(maxima, last, axis=1)[:, last]
    floors[np.isnan(maxima.max(axis=1))] = np.nan
    row, of = _true_places(maxima >= floors[:, None])
    inside = of < blocks
    left_over = ~inside
    own, tokens = row[inside], np.arange(block) * blocks + of[inside, None]
    pair, place = _true_places(rows[own[:, None], tokens] >= floors[own, None])
    found_rows = np.concatenate([own[pair], row[left_over]])
    found = np.concatenate([tokens[pair, place], of[left_over] + (block - 1) * blocks])
    places = np.sort(found_rows * rows.shape[1] + found)
    return places // rows.shape[1], places % rows.shape[1]


def _maxima(rows: Row, block: int) -> Row:
    """Maxima of blocks of tokens; those left over at the end stand for themselves.

    A block's tokens lie far apart, so that the maximum is taken of whole stretches of memory.
    """
    positions, vocabulary = rows.shape
    blocks = vocabulary // block
    whole = rows[:, : blocks * block].reshape(positions, block, blocks).max(axis=1)
    return np.concatenate([whole, rows[:, blocks * block :]], axis=1)


def _true_places(table: NDArray[np.bool_]) -> tuple[Ids, Ids]:
    """Rows and columns, in order, as ``numpy.nonzero``, which takes twice as long for them."""
    return np.divmod(np.flatnonzero(table), table.shape[1])
