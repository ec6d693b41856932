"""Rows of log-probabilities: their checks, and the pieces in which they are worked through.

What else is computed of distributions takes a few numbers a position, and is written once, wherever
the rows are: in main memory (:class:`HostRows`), or on a device that they do not leave.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    pair, column = _true_places(rows[own[:, None], tokens] >= floors[own, None])
    found_rows = np.concatenate([own[pair], row[left_over]])
    found_ids = np.concatenate([tokens[pair, column], of[left_over] + (block - 1) * blocks])
    places = np.sort(found_rows * rows.shape[1] + found_ids)
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


# Tokens of which the mass is summed before one of them is drawn.
_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTails:
    """What T rows say of the tokens that are not among the kept ones.

    Attributes:
        mass: their probabilities' sum, float64, shape (T,).
        largest: the largest of their log-probabilities, -inf where there is none, shape (T,).
        least_sum: the sum of the n smallest of their log-probabilities, float64; ``next_least``:
            the one after these; shape (T,). Anything where no n was given, or n is all.
    """

    mass: Float
    largest: Float
    least_sum: Float
    next_least: Float


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDraws:
    """What a reference keeps of T rows beside the k most probable tokens.

    Attributes:
        mass: probability of the others, float64, shape (T,).
        full_support: whether all of them have a probability above 0, shape (T,).
        ids: of those drawn in proportion to it, int32, shape (T, m); -1 where there is none.
    """

    mass: Float
    full_support: NDArray[np.bool_]
    ids: NDArray[np.int32]


def no_tails(positions: int) -> RowTails:
    """Tails of rows of which every token was kept."""
    none = np.zeros(positions)
    return RowTails(mass=none, largest=none - np.inf, least_sum=none, next_least=none)


def no_draws(positions: int, samples: int) -> TailDraws:
    """Draws from rows of which every token was kept."""
    ids = np.full((positions, samples), NO_TOKEN, dtype=np.int32)
    mass, full_support = np.zeros(positions), np.ones(positions, dtype=np.bool_)
    return TailDraws(mass=mass, full_support=full_support, ids=ids)


class LogprobRows(ABC):
    """T rows of natural log-probabilities of V tokens, float32, wherever they are.

    Attributes:
        shape: (T, V).
    """

    shape: tuple[int, int]

    @abstractmethod
    def part(self, piece: slice) -> LogprobRows:
        """Some of the positions."""

    @abstractmethod
    def at(self, ids: Ids) -> Float:
        """The values at token ids of shape (T, k), as float64."""

    @abstractmethod
    def top(self, k: int) -> Ids:
        """As :func:`evalguard.core.logprob_rows.top_tokens`."""

    @abstractmethod
    def tails(self, kept: Ids, least: Ids) -> RowTails:
        """Tails beside the kept tokens.

        Args:
            kept: token ids, shape (T, k); k below V.
            least: how many of the smallest to sum, from 0 to V - k, shape (T,).
        """

    @abstractmethod
    def draw(self, kept: Ids, uniforms: Float) -> TailDraws:
        """Draw from the tails beside the kept tokens.

        Args:
            kept: token ids, shape (T, k); k below V.
            uniforms: numbers from [0, 1), shape (T, m).
        """


class HostRows(LogprobRows):
    """Rows in main memory, worked through in pieces that stay in a core's cache."""

    def __init__(self, rows: Row) -> None:
        self._rows = rows
        self.shape = rows.shape

    def part(self, piece: slice) -> HostRows:
        """Look at some."""
        return HostRows(self._rows[piece])

    def at(self, ids: Ids) -> Float:
        """Pick values."""
        return at_tokens(self._rows, ids)

    def top(self, k: int) -> Ids:
        """Pick tokens."""
        return top_tokens(self._rows, k)

    def tails(self, kept: Ids, least: Ids) -> RowTails:
        """Sum and pick what is smallest, with two temporaries of a piece."""
        positions, vocabulary = self.shape
        tails = RowTails(**{name: np.empty(positions) for name in RowTails.__slots__})
        longest = min(longest_piece(vocabulary), positions)
        tail_room = np.empty((longest, vocabulary), dtype=self._rows.dtype)
        p_room = np.empty((longest, vocabulary))
        for piece in pieces(positions, vocabulary):
            count = piece.stop - piece.start
            tail, p = tail_room[:count], p_room[:count]
            places = _flat(kept[piece], vocabulary)
            np.copyto(tail, self._rows[piece])
            tail.reshape(-1)[places] = -np.inf
            tails.largest[piece] = tail.max(axis=1)
            np.copyto(p, tail)
            np.exp(p, out=p).sum(axis=1, out=tails.mass[piece])
            tail.reshape(-1)[places] = np.inf
            wanted = least[piece].tolist()
            for position, (row, n) in enumerate(zip(tail, wanted, strict=True), piece.start):
                row.partition(min(n, vocabulary - 1))
                tails.least_sum[position] = np.add.reduce(row[:n], dtype=np.float64)
                tails.next_least[position] = row[min(n, vocabulary - 1)]
        return tails

    def draw(self, kept: Ids, uniforms: Float) -> TailDraws:
        """Sum masses block by block, and draw within the block in which a number falls."""
        positions, vocabulary = self.shape
        blocks = -(-vocabulary // _BLOCK)
        masses, least = np.empty((positions, blocks)), np.empty(positions)
        longest = min(longest_piece(vocabulary), positions)
        room = np.zeros((longest, blocks * _BLOCK))
        mass = np.empty(positions)
        for piece in pieces(positions, vocabulary):
            p = room[: piece.stop - piece.start]
            np.copyto(p[:, :vocabulary], self._rows[piece])
            np.exp(p[:, :vocabulary], out=p[:, :vocabulary])
            p.reshape(-1)[_flat(kept[piece], p.shape[1])] = 0.0
            p[:, :vocabulary].sum(axis=1, out=mass[piece])
            p.reshape(len(p), blocks, _BLOCK).sum(axis=2, out=masses[piece])
            least[piece] = self._rows[piece].min(axis=1)  # kept tokens are more probable
        ids = np.empty(uniforms.shape, dtype=np.int32)
        for piece in pieces(positions, uniforms.shape[1] * _BLOCK):
            ids[piece] = self._draw_in_blocks(piece, masses[piece], kept[piece], uniforms[piece])
        return TailDraws(mass=mass, full_support=np.exp(least) > 0.0, ids=ids)

    def _draw_in_blocks(
        self, piece: slice, masses: Float, kept: Ids, uniforms: Float
    ) -> NDArray[np.int32]:
        """Token ids in proportion to p, shape (t, m); -1 for a row without any mass.

        The first token whose cumulated mass is above u; the largest u may round to the end.
        """
        cumulated = np.cumsum(masses, axis=1)
        totals = cumulated[:, -1:]
        wanted = uniforms * totals
        block = _first_above(cumulated[:, None, :], wanted)
        row = np.arange(len(masses))[:, None]
        before = np.where(block == 0, 0.0, cumulated[row, np.maximum(block - 1, 0)])
        tokens = block[:, :, None] * _BLOCK + np.arange(_BLOCK)
        vocabulary = self.shape[1]
        known = np.minimum(tokens, vocabulary - 1)
        p = np.exp(self._rows[piece][row[:, :, None], known].astype(np.float64))
        p[tokens >= vocabulary] = 0.0
        at, draw, token = np.nonzero((kept // _BLOCK)[:, None, :] == block[:, :, None])
        p[at, draw, kept[at, token] % _BLOCK] = 0.0
        inside = _first_above(np.cumsum(p, axis=2), wanted - before)
        drawn = (block * _BLOCK + inside).astype(np.int32)
        return np.where((totals > 0.0) & np.isfinite(totals), drawn, np.int32(NO_TOKEN))


def as_rows(rows: Row | LogprobRows, token_ids: Ids, *, side: str) -> LogprobRows:
    """Return rows of T scored tokens, wherever they are.

    Raises:
        ValueError: they do not fit, see :func:`evalguard.core.logprob_rows.check_rows`.
    """
    if isinstance(rows, LogprobRows):
        check_shape(rows.shape, token_ids, side=side)
        return rows
    return HostRows(check_rows(rows, token_ids, side=side))


def _flat(ids: Ids, width: int) -> Ids:
    """Places of tokens in rows of ``width`` that lie one behind the other."""
    places: Ids = ids + (np.arange(len(ids)) * width)[:, None]
    return places


def _first_above(cumulated: Float, wanted: Float) -> Ids:
    """First place of the last axis whose value is above ``wanted``; at most that of the largest."""
    not_above = np.count_nonzero(cumulated <= wanted[..., None], axis=-1)
    last = np.count_nonzero(cumulated < cumulated[..., -1:], axis=-1)
    places: Ids = np.minimum(not_above, last)
    return places
