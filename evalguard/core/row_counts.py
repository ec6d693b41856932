"""Which rows were put in or taken out, where two matrices have another number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensor_structure import Fault


def rows_text(rows: Iterable[int], most: int = 3) -> str:
    """Return "row 7", "64 rows: 0 to 63", "5 rows: 1, 3, 7 to 9"."""
    listed = sorted(rows)
    ranges = list(_ranges(listed))
    shown = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:most])
    rest = "" if len(ranges) <= most else " ..."
    if len(listed) == 1:
        return f"row {listed[0]}"
    return f"{len(listed):,} rows: {shown}{rest}"


def _ranges(listed: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for at in range(1, len(listed) + 1):
        if at == len(listed) or listed[at] != listed[at - 1] + 1:
            yield listed[start], listed[at - 1]
            start = at


Array = NDArray[Any]
# A row is the other side's up to this part of its norm: what a quantiser leaves is less, and
# unrelated rows are 1.4 times their norm apart.
_ALIKE = 0.6
_AGAIN = 3  # rows that have to be alike after a gap
_MOST_GAPS = 32
_MOST_DIFFERING = 0.1  # of the rows that both sides have


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What makes two matrices of one number of rows each.

    Attributes:
        more: the side that has more.
        rows: of it, that the other side has not.
        at_end: whether they are its last ones.
        differing: rows that both sides have and that are not alike.
        count: rows that both sides have.
    """

    more: Literal["base", "candidate"]
    rows: tuple[int, ...]
    at_end: bool
    differing: int
    count: int

    @property
    def fault(self) -> Fault:
        """Rows in the middle shift all that follow."""
        if not self.at_end:
            return "shifted"
        return "rows appended" if self.more == "candidate" else "rows cut off"

    @property
    def detail(self) -> str:
        """Which rows, and what else differs."""
        count, first = len(self.rows), self.rows[0]
        number = f"{count:,} row{'s' if count > 1 else ''}"
        what = "inserted" if self.more == "candidate" else "deleted"
        if self.at_end:
            text = f"{number} at the end, from row {first} on"
        elif self.rows[-1] - first + 1 == count:
            text = f"from row {first} on, {number} {what}"
        else:
            text = f"from row {first} on, {what}: {rows_text(self.rows)}"
        rows = f"{self.differing:,} other row{'s' if self.differing > 1 else ''}"
        return f"{text}; {rows} not alike" if self.differing else text


def find_row_counts(base: Array, candidate: Array) -> RowCounts | None:
    """Say which rows one side has more; None where the others are not alike, in their order.

    Args:
        base, candidate: (rows, columns) of two numbers of rows; projections of them will do.
    """
    longer: Literal["base", "candidate"] = "candidate" if len(candidate) > len(base) else "base"
    long, short = (candidate, base) if longer == "candidate" else (base, candidate)
    extra = len(long) - len(short)
    if not extra or not len(short):
        return None
    gaps: list[int] = []
    differing = shift = at = 0
    for _ in range(len(short)):
        alike = _alike(long[at + shift : len(short) + shift], short[at:])
        wrong = np.flatnonzero(~alike)
        if not wrong.size:
            break
        at += int(wrong[0])
        gap = _find_gap(long[at + shift :], short[at:], extra - shift)
        if gap:
            gaps += range(at + shift, at + shift + gap)
            shift += gap
            if len(gaps) > extra or _count_runs(gaps) > _MOST_GAPS:
                return None
        else:
            differing += 1
            at += 1
            if differing > _MOST_DIFFERING * len(short):
                return None
    gaps += range(len(short) + shift, len(long))
    at_end = gaps[0] == len(short)
    return RowCounts(
        more=longer, rows=tuple(gaps), at_end=at_end, differing=differing, count=len(short)
    )


def _alike(one: Array, other: Array) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        apart = ((one - other) ** 2).sum(axis=1)
        size = np.maximum((one**2).sum(axis=1), (other**2).sum(axis=1))
    alike: NDArray[np.bool_] = apart <= _ALIKE**2 * size
    return alike


def _find_gap(long: Array, short: Array, most: int) -> int:
    """Return how many rows to leave out so that the next are alike; 0 where that does not help."""
    wanted = short[:_AGAIN]
    places = range(1, min(most, len(long) - len(wanted)) + 1)
    if not places or not wanted.any():
        return 0
    first = np.flatnonzero(_alike(long[1 : places[-1] + 1], wanted[:1])) + 1
    for gap in first.tolist():
        if _alike(long[gap : gap + len(wanted)], wanted).all():
            return int(gap)
    return int(first[0]) if first.size else 0  # there may be a gap beside it


def _count_runs(rows: list[int]) -> int:
    return 1 + sum(later != row + 1 for row, later in pairwise(rows))
