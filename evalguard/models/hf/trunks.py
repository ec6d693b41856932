"""Trunks: long beginnings that many rows have in common, as the examples of few-shot prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from evalguard.models.hf.batch_cuts import join_neighbours
from evalguard.models.hf.prefix_tree import shared_prefix_length
from evalguard.models.hf.scored_tokens import InputTokens

# A shorter one is not worth a forward pass of its own.
_SHORTEST_TRUNK = 64

RowPieces = list[InputTokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkGroup:
    """Rows that begin alike: ``trunk`` is the length of that beginning, 0 for a row by itself."""

    trunk: int
    rows: tuple[RowPieces, ...]


def group_by_trunk(rows: Sequence[RowPieces]) -> list[TrunkGroup]:
    """Put rows together whose common beginning is better read once, before all of them.

    Args:
        rows: as of ``divide_into_rows``, in the order of their tokens.
    """
    alone = [_JoinedRows(count=1, trunk=_longest_trunk(row)) for row in rows]
    shared = [shared_prefix_length(one[-1].ids, two[0].ids) for one, two in pairwise(rows)]
    ranges = join_neighbours(alone, shared, _JoinedRows.joined)
    found = []
    for start, end in ranges:
        of = tuple(rows[start:end])
        found.append(TrunkGroup(trunk=_common_trunk(of) if len(of) > 1 else 0, rows=of))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _JoinedRows:
    count: int
    trunk: int  # the longest that these rows can have

    def joined(self, other: _JoinedRows, shared: int) -> _JoinedRows | None:
        """These rows with others, unless the longer trunks that they have by themselves save more.

        Reading a trunk of t tokens once for n rows saves (n - 1) t tokens.
        """
        trunk = min(shared, self.trunk, other.trunk)
        lost = (self.count - 1) * (self.trunk - trunk) + (other.count - 1) * (other.trunk - trunk)
        if trunk < _SHORTEST_TRUNK or lost >= trunk:
            return None
        return _JoinedRows(count=self.count + other.count, trunk=trunk)


def _longest_trunk(row: RowPieces) -> int:
    """The longest trunk of one row: it ends before the first token that is read of any piece."""
    first = min(len(piece.ids) - 1 - piece.n_scored for piece in row)
    return min(first, shared_prefix_length(row[0].ids, row[-1].ids))


def _common_trunk(rows: Sequence[RowPieces]) -> int:
    between = shared_prefix_length(rows[0][0].ids, rows[-1][-1].ids)
    return min(between, *(_longest_trunk(row) for row in rows))
