"""The most probable tokens of each row, and how many of them two rows share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import Row

Ids = NDArray[np.int64]

_BLOCK = 64
# Numbers whose maxima are taken in one call.
_AT_ONCE = 2**20
NO_TOKEN = -1


def top_tokens(rows: Row, k: int) -> Ids:
    """The k most probable tokens of each row, most probable first, shape (T, k).

    Equal probabilities: the smaller token id first, so that the answer depends on the values only.
    A row that holds NaN has no most probable token: all -1.

    The k-th largest of the maxima of blocks of tokens is at most the k-th largest value, so that
    only the few tokens at or above it need sorting. Where k blocks are many of all, the k-th
    largest value itself is found.

    Args:
        rows: shape (T, V), no matter whether logits or log-probabilities.
        k: from 1 to V.
    """
    positions, vocabulary = rows.shape
    tops = np.full((positions, k), NO_TOKEN, dtype=np.int64)
    step = max(1, _AT_ONCE // vocabulary)
    for start in range(0, positions, step):
        part = rows[start : start + step]
        if k == 1:
            best = part.argmax(axis=1)
            sound = ~np.isnan(part[np.arange(len(part)), best])
            tops[start : start + step, 0] = np.where(sound, best, NO_TOKEN)
            continue
        few = vocabulary < 4 * k * _BLOCK
        row, token = _at_least_itself(part, k) if few else _at_least_in_blocks(part, k)
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
    row, token = np.nonzero(rows >= floors[:, None])
    return row, token


def _at_least_in_blocks(rows: Row, k: int) -> tuple[Ids, Ids]:
    """Those as probable as a lower bound of the k-th, likewise; only their blocks are read."""
    blocks = rows.shape[1] // _BLOCK
    maxima = _maxima(rows)
    last = maxima.shape[1] - k
    floors: Any = np.partition(maxima, last, axis=1)[:, last]
    floors[np.isnan(maxima.max(axis=1))] = np.nan
    row, block = np.nonzero(maxima >= floors[:, None])
    inside = block < blocks
    left_over = ~inside
    own, tokens = row[inside], np.arange(_BLOCK) * blocks + block[inside, None]
    pair, place = np.nonzero(rows[own[:, None], tokens] >= floors[own, None])
    found_rows = np.concatenate([own[pair], row[left_over]])
    found = np.concatenate([tokens[pair, place], block[left_over] + (_BLOCK - 1) * blocks])
    places = np.sort(found_rows * rows.shape[1] + found)
    return places // rows.shape[1], places % rows.shape[1]


def _maxima(rows: Row) -> Row:
    """Maxima of blocks of tokens; those left over at the end stand for themselves.

    A block's tokens lie far apart, so that the maximum is taken of whole stretches of memory.
    """
    positions, vocabulary = rows.shape
    blocks = vocabulary // _BLOCK
    whole = rows[:, : blocks * _BLOCK].reshape(positions, _BLOCK, blocks).max(axis=1)
    return np.concatenate([whole, rows[:, blocks * _BLOCK :]], axis=1)
