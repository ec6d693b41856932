"""The most probable tokens of each row, and how many of them two rows share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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


# Divergence: how two models' next-token distributions differ at every scored position.


TOP_K = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How base and candidate differ at the T scored positions of one request, in reading order.

    Attributes:
        token_ids: the scored token, shape (T,).
        base_logprobs, candidate_logprobs: natural log-probability of the scored token, as the
            models gave it, shape (T,).
        kl: KL(base || candidate) in nats, shape (T,); exact, or the unbiased estimate from a
            reference. NaN where one of the rows is no distribution, inf where the candidate gives
            no probability at all to a token that the base can say.
        kl_low, kl_high: proven bounds of the exact value, shape (T,); None where ``kl`` is exact.
        base_top, candidate_top: most probable token of each model, shape (T,); -1 for a row that
            is not a distribution. Ties: the smaller token id.
        shared_top: how many of the ``top_k`` most probable tokens both models share, shape (T,).
    """

    token_ids: NDArray[np.int64]
    base_logprobs: Float
    candidate_logprobs: Float
    kl: Float
    kl_low: Float | None = None
    kl_high: Float | None = None
    base_top: Ids
    candidate_top: Ids
    shared_top: Ids
    top_k: int

    @property
    def positions(self) -> int:
        """T, the number of scored positions."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDivergence:
    """The divergences of one document's requests, in their order."""

    doc_id: int
    requests: tuple[Divergence, ...]


def divergence(
    base: Row, candidate: Row, token_ids: NDArray[np.int64], *, top_k: int = TOP_K
) -> Divergence:
    """Compare two models' distributions, position by position.

    KL(p || q) = sum p (log p - log q). Float32 log-probabilities sum to 1 only within rounding,
    which would make noise of 1e-7 of it, of either sign; so both rows are renormalised, and all is
    summed, in float64. What rounding is left is about 1e-15; a value that it would make negative
    is 0, and a row against itself gives exactly 0.

    Args:
        base, candidate: natural log-probabilities, shape (T, V), float32 or float64; -inf is a
            probability of 0.
        token_ids: the scored tokens, shape (T,).
        top_k: tokens that ``shared_top`` looks at; at most V are used.

    Raises:
        ValueError: for shapes that do not fit, or rows that are no log-probabilities.
    """
    check_rows(base, token_ids, side="base")
    check_rows(candidate, token_ids, side="candidate")
    if base.shape != candidate.shape:
        raise ValueError(f"rows of different shapes: {base.shape} and {candidate.shape}")
    k = min(top_k, base.shape[1])
    base_top, candidate_top = top_tokens(base, k), top_tokens(candidate, k)
    scored = token_ids[:, None]
    return Divergence(
        token_ids=token_ids,
        base_logprobs=at_tokens(base, scored)[:, 0],
        candidate_logprobs=at_tokens(candidate, scored)[:, 0],
        kl=_kl(base, candidate),
        base_top=base_top[:, 0],
        candidate_top=candidate_top[:, 0],
        shared_top=shared_tokens(base_top, candidate_top),
        top_k=k,
    )


def _kl(base: Row, candidate: Row) -> Float:
    """KL of each row, in nats, shape (T,).

    A row of a large vocabulary is so long that fetching fresh memory for it takes longer than the
    arithmetic: three arrays of a piece are all that is worked in.
    """
    positions, vocabulary = base.shape
    longest = min(longest_piece(vocabulary), positions)
    rooms = [np.empty((longest, vocabulary)) for _ in range(3)]
    base_sums, candidate_sums, sums = (np.empty(positions) for _ in range(3))
    with np.errstate(invalid="ignore"):
        for piece in pieces(positions, vocabulary):
            log_p, log_q, p = (room[: piece.stop - piece.start] for room in rooms)
            np.copyto(log_q, candidate[piece])
            np.exp(log_q, out=p).sum(axis=1, out=candidate_sums[piece])
            np.copyto(log_p, base[piece])
            np.exp(log_p, out=p).sum(axis=1, out=base_sums[piece])
            sums[piece] = _dots(p, np.subtract(log_p, log_q, out=log_p))
    for row in np.flatnonzero(np.isnan(sums)):  # a probability of 0, or a row that is none
        log_p, log_q = (side[row : row + 1].astype(np.float64) for side in (base, candidate))
        p = np.exp(log_p)
        with np.errstate(invalid="ignore"):
            sums[row] = _dots(p, log_ratios(log_p, log_q, p))[0]
    base_logs = log_sums(base_sums, side="base")
    candidate_logs = log_sums(candidate_sums, side="candidate")
    kl: Float = np.maximum(sums / np.exp(base_logs) - base_logs + candidate_logs, 0.0)
    return kl


def _dots(one: Float, other: Float) -> Float:
    """Sum of products, row by row; twice as fast as einsum where rows are long."""
    dots: Float = np.matmul(one[:, None, :], other[:, :, None])[:, 0, 0]
    return dots


# Rows of log-probabilities: their checks, and the pieces in which they are worked through.


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
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"{side}: rows must have the shape (positions, vocabulary), {rows.shape}")
    if rows.dtype not in (np.float32, np.float64):
        raise ValueError(f"{side}: rows must be float32 or float64, not {rows.dtype}")
    if token_ids.shape != (rows.shape[0],):
        raise ValueError(f"{side}: {rows.shape[0]} rows for {token_ids.shape} token ids")
    if token_ids.size and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < rows.shape[1]:
        raise ValueError(f"{side}: a scored token is outside the {rows.shape[1]} tokens of the row")
    return rows


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


# Records of scored positions (Divergence, Reference), put together and cut apart.


R = TypeVar("R")


def join_positions(parts: Sequence[R]) -> R:
    """Put records of consecutive positions together: arrays one after the other.

    Args:
        parts: frozen dataclasses of one class, whose arrays have the positions as first axis; what
            is not an array (a number of tokens, None) is the same in all of them.

    Raises:
        ValueError: for no parts, or parts that do not fit together.
    """
    if not parts:
        raise ValueError("no records to put together")
    if len(parts) == 1:
        return parts[0]
    first: Any = parts[0]
    fields = {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            fields[field.name] = np.concatenate(values)
        elif all(not isinstance(value, np.ndarray) and value == values[0] for value in values):
            fields[field.name] = values[0]
        else:
            raise ValueError(f"records differ in {field.name}: they do not fit together")
    return dataclasses.replace(first, **fields)  # type: ignore[no-any-return]


def cut(record: R, lengths: Sequence[int]) -> list[R]:
    """Cut a record into parts of so many positions each.

    Raises:
        ValueError: if the lengths do not add up to its positions.
    """
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    values = {field.name: getattr(record, field.name) for field in fields}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    positions = {array.shape[0] for array in arrays.values()}
    if positions != {sum(lengths)}:
        raise ValueError(f"{sorted(positions)} positions are not the {sum(lengths)} to be cut")
    kind = type(record)
    return [
        kind(**{**values, **{name: array[end - length : end] for name, array in arrays.items()}})
        for end, length in zip(accumulate(lengths), lengths, strict=True)
    ]
