"""The most probable tokens of each row, and how many of them two rows share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import Float, Row

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
    only the few tokens at or above it need sorting.

    Args:
        rows: shape (T, V), no matter whether logits or log-probabilities.
        k: from 1 to V.
    """
    positions, vocabulary = rows.shape
    tops = np.full((positions, k), NO_TOKEN, dtype=np.int64)
    step = max(1, _AT_ONCE // vocabulary)
    for start in range(0, positions, step):
        part = rows[start : start + step]
        maxima = _maxima(part)
        floors = _floors(maxima, k)
        for row, own, floor, top in zip(part, maxima, floors, tops[start:], strict=False):
            if floor == floor:  # not NaN
                found = _at_least(row, own, floor)
                top[:] = found[np.argsort(-row[found], kind="stable")[:k]]
    return tops


def shared_tokens(one: Ids, other: Ids) -> Ids:
    """How many tokens of ``one`` are among those of ``other``, row by row, shape (T,)."""
    same = (one[:, :, None] == other[:, None, :]) & (one[:, :, None] != NO_TOKEN)
    counts: Ids = np.count_nonzero(same, axis=(1, 2)).astype(np.int64)
    return counts


def _floors(maxima: Row, k: int) -> Float:
    """A lower bound of each row's k-th largest value; NaN for a row that holds NaN."""
    last = maxima.shape[1] - k
    floors = np.full(maxima.shape[0], -np.inf)
    if last >= 0:
        floors[:] = np.partition(maxima, last, axis=1)[:, last]
    floors[np.isnan(maxima.max(axis=1))] = np.nan
    return floors


def _at_least(row: Row, maxima: Row, floor: float) -> Ids:
    """Tokens of a row that are as probable as ``floor``, ascending; only their blocks are read."""
    blocks = len(row) // _BLOCK
    largest = np.flatnonzero(maxima >= floor)
    inside = largest[largest < blocks]
    tokens = (np.arange(_BLOCK)[:, None] * blocks + inside).ravel()
    found: Ids = tokens[row[tokens] >= floor]
    if len(inside) < len(largest):  # of those left over, which stand for themselves
        found = np.concatenate([found, largest[len(inside) :] + (_BLOCK - 1) * blocks])
    found.sort()
    return found


def _maxima(rows: Row) -> Row:
    """Maxima of blocks of tokens; those left over at the end stand for themselves.

    A block's tokens lie far apart, so that the maximum is taken of whole stretches of memory.
    """
    positions, vocabulary = rows.shape
    blocks = vocabulary // _BLOCK
    whole = rows[:, : blocks * _BLOCK].reshape(positions, _BLOCK, blocks).max(axis=1)
    return np.concatenate([whole, rows[:, blocks * _BLOCK :]], axis=1)
