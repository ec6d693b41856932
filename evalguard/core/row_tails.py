"""Rows of log-probabilities, V numbers a position: the few things that are asked of all of them.

What else is computed of distributions takes a few numbers a position, and is written once, wherever
the rows are: in main memory (:class:`HostRows`), or on a device that they do not leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import (
    Float,
    Row,
    at_tokens,
    check_rows,
    check_shape,
    longest_piece,
    pieces,
)
from evalguard.core.top_tokens import NO_TOKEN, Ids, top_tokens

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
        """As :func:`evalguard.core.top_tokens.top_tokens`."""

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
        found = RowTails(**{name: np.empty(positions) for name in RowTails.__slots__})
        longest = min(longest_piece(vocabulary), positions)
        tail_room = np.empty((longest, vocabulary), dtype=self._rows.dtype)
        p_room = np.empty((longest, vocabulary))
        for piece in pieces(positions, vocabulary):
            count = piece.stop - piece.start
            tail, p = tail_room[:count], p_room[:count]
            places = _flat(kept[piece], vocabulary)
            np.copyto(tail, self._rows[piece])
            tail.reshape(-1)[places] = -np.inf
            found.largest[piece] = tail.max(axis=1)
            np.copyto(p, tail)
            np.exp(p, out=p).sum(axis=1, out=found.mass[piece])
            tail.reshape(-1)[places] = np.inf
            wanted = least[piece].tolist()
            for place, (row, n) in enumerate(zip(tail, wanted, strict=True), piece.start):
                row.partition(min(n, vocabulary - 1))
                found.least_sum[place] = np.add.reduce(row[:n], dtype=np.float64)
                found.next_least[place] = row[min(n, vocabulary - 1)]
        return found

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
    found = np.count_nonzero(cumulated <= wanted[..., None], axis=-1)
    last = np.count_nonzero(cumulated < cumulated[..., -1:], axis=-1)
    places: Ids = np.minimum(found, last)
    return places
