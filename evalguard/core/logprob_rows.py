"""Rows of log-probabilities: their checks, and the pieces in which they are worked through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Row = NDArray[np.float32] | Float

# A quarter of a MB of float64 a temporary: it stays in a core's cache, its pages are used again
# instead of being fetched anew (twice as fast as 2**16), and memory does not grow with T.
_PIECE = 2**15
# Log-softmax in bfloat16 leaves a row's sum within a few percent of 1; logits are far from it.
_MOST_LOG_SUM = 0.1


def check_rows(rows: Row, token_ids: NDArray[np.int64], *, side: str) -> Row:
    """Return ``rows``, shape (T, V), if they fit the T scored tokens.

    Raises:
        ValueError: for another shape or dtype, or a token id outside the vocabulary.
    """
    if rows.dtype not in (np.float32, np.float64):
        raise ValueError(f"{side}: rows must be float32 or float64, not {rows.dtype}")
    check_shape(rows.shape, token_ids, side=side)
    return rows


def check_shape(shape: tuple[int, ...], token_ids: NDArray[np.int64], *, side: str) -> None:
    """Check the shape of rows, wherever they are, against their T scored tokens.

    Raises:
        ValueError: not (T, V), or a token id outside the vocabulary.
    """
    if len(shape) != 2 or shape[1] == 0:
        raise ValueError(f"{side}: rows must have the shape (positions, vocabulary), {shape}")
    if token_ids.shape != (shape[0],):
        raise ValueError(f"{side}: {shape[0]} rows for {token_ids.shape} token ids")
    if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < shape[1]:
        raise ValueError(f"{side}: a scored token is outside the {shape[1]} tokens of the row")


def longest_piece(vocabulary: int) -> int:
    """Rows that a piece has at most."""
    return max(1, _PIECE // vocabulary)


def pieces(positions: int, vocabulary: int) -> Iterator[slice]:
    """Slices over the positions, each small enough to be worked through in one go."""
    step = longest_piece(vocabulary)
    for start in range(0, positions, step):
        yield slice(start, min(start + step, positions))


def log_sums(sums: Float, *, side: str) -> Float:
    """Log of the sums of rows of probabilities, shape (T,); NaN where a row is not a distribution.

    Such a row holds NaN or +inf, or no probability above 0.

    Raises:
        ValueError: for a sum that is far from 1: logits, say.
    """
    logs = np.full(sums.shape, np.nan)
    np.log(sums, out=logs, where=np.isfinite(sums) & (sums > 0.0))
    if bool(np.any(np.abs(logs) > _MOST_LOG_SUM)):
        worst = float(sums[np.nanargmax(np.abs(logs))])
        raise ValueError(f"{side}: rows are no log-probabilities: one sums to {worst:.3g}, not 1")
    return logs


def at_tokens(rows: Row, ids: NDArray[np.int64]) -> Float:
    """The values of ``rows`` at token ids, shape (T, k), as float64."""
    return np.take_along_axis(rows, ids, axis=1).astype(np.float64)


def log_ratios(log_p: Float, log_q: Float, p: Float) -> Float:
    """log p - log q, in the place of ``log_p``; 0 where p is 0, for p log p -> 0."""
    with np.errstate(invalid="ignore"):  # -inf - -inf, and rows that hold NaN
        ratios: Float = np.subtract(log_p, log_q, out=log_p)
    ratios[p == 0.0] = 0.0
    return ratios
