"""Trunks: long beginnings that many rows have in common, as the examples of few-shot prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from evalguard.models.neighbours import join_neighbours
from evalguard.models.prefix_tree import shared_length
from evalguard.models.scored_tokens import FedTokens

# A shorter one is not worth a forward pass of its own.
_SHORTEST = 64

Row = list[FedTokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grove:
    """Rows that begin alike: ``trunk`` is the length of that beginning, 0 for a row by itself."""

    trunk: int
    rows: tuple[Row, ...]


def groves(rows: Sequence[Row]) -> list[Grove]:
    """Put rows together whose common beginning is better read once, before all of them.

    Args:
        rows: as of ``shared_rows``, in the order of their tokens.
    """
    alone = [_Together(count=1, trunk=_readable(row)) for row in rows]
    shared = [shared_length(one[-1].ids, two[0].ids) for one, two in pairwise(rows)]
    ranges = join_neighbours(alone, shared, _Together.joined)
    found = []
    for start, end in ranges:
        of = tuple(rows[start:end])
        found.append(Grove(trunk=_common(of) if len(of) > 1 else 0, rows=of))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Together:
    count: int
    trunk: int  # the longest that these rows can have

    def joined(self, other: _Together, shared: int) -> _Together | None:
        """These rows with others, unless the longer trunks that they have by themselves save more.

        Reading a trunk of t tokens once for n rows saves (n - 1) t tokens.
        """
        trunk = min(shared, self.trunk, other.trunk)
        lost = (self.count - 1) * (self.trunk - trunk) + (other.count - 1) * (other.trunk - trunk)
        if trunk < _SHORTEST or lost >= trunk:
            return None
        return _Together(count=self.count + other.count, trunk=trunk)


def _readable(row: Row) -> int:
    """The longest trunk of one row: it ends before the first token that is read of any piece."""
    first = min(len(piece.ids) - 1 - piece.n_scored for piece in row)
    return min(first, shared_length(row[0].ids, row[-1].ids))


def _common(rows: Sequence[Row]) -> int:
    between = shared_length(rows[0][0].ids, rows[-1][-1].ids)
    return min(between, *(_readable(row) for row in rows))
