"""The rows of a stored pair read once more, in pieces: which of them are damaged, and how.

Rows are known by a few random projections, which keep distances (Johnson-Lindenstrauss), and by
four sums: so a matrix of any size is judged in little memory, and a row that stands in another
place is found among all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import CAST
from evalguard.core.grid import Grid, measure_steps
from evalguard.core.precision_vote import Rounding
from evalguard.core.row_counts import rows_text
from evalguard.core.tensor_structure import (
    LEAST_HEAD,
    NOT_FINITE,
    UNKNOWN_DAMAGE,
    Fault,
    block_size,
    find_rotary_blocks,
    is_curve,
)
from evalguard.core.untrained_rows import count_untrained
from evalguard.models.unloaded_models import may_have_heads
from evalguard.tensors.streamed_sums import StoredPair, bound_parts, load_bounded

Array = NDArray[Any]
Rows = NDArray[np.intp]
# Gives some rows of the base, of the candidate, and how far each element may be off.
RowReader = Callable[[Rows], tuple[Array, Array, Array]]
PROJECTIONS = 32
SPAN = 32  # elements of a block, as most formats have them
_TREE = 8  # projections by which near rows are looked for; all of them prove it
_SAMPLE = 256  # rows that propose by how much all of them are shifted
_MOST_LOOKED_UP = 4096  # rows without a hint that they come from anywhere
_FEWEST, _SPREAD = 8, 5.0  # rows that say what is usual, and times their standard deviation
_READ = 64  # rows that are read again for their factors and blocks
_LARGEST = 16  # one of so many elements is left out: a factor of the largest alone is none
_GAIN = 0.5  # an explanation leaves at most this part of a row's difference
_LEFT = 0.1  # of its squares, of what a factor explains
_MOST_HOLD = 0.9  # of the rows that are read: then a factor holds of the others too
_FARTHEST = 0.6  # unrelated rows are 1.4 times their norm apart
_UNLIKE = 0.5  # of a row's squares: no rounding of two bits leaves as much
_DRIFT = 0.02  # of a row's squares: more is a coarse quantiser, or another tensor
_OUTLIER = 16.0  # times the median of the rows' relative squared errors
_NEARER = 1e-3  # times the relative squared error of others: rows that no fault is in
_OTHERS = 0.1  # of a difference's squares: what a fault leaves to rows that it does not name
# Rows are these by how far they are off, and by nothing else that shows.
_BY_SIZE: frozenset[Fault] = frozenset({"rows scaled", "blocks scaled", *UNKNOWN_DAMAGE})
_TAIL = 8.0  # times the usual error of an element: of a million normal ones none is as large


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """What was done to some rows, or to blocks within them.

    Attributes:
        rows: that are damaged so, in order.
        detail: for people: "row 7, columns 96 to 127, by 10".
        blocks: (row, first column, last column) of the first few; () where whole rows are.
    """

    fault: Fault
    rows: tuple[int, ...]
    detail: str
    blocks: tuple[tuple[int, int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class RowScan:
    """Sums over every row of a pair, filled piece by piece.

    ``beyond`` counts elements whose difference is more than is healthy, ``greatest`` is the largest
    of them; the others are sums of squares of base, candidate and difference, and of products.
    """

    rows: int
    columns: int
    directions: Array
    base: Array
    candidate: Array
    base_squares: Array
    candidate_squares: Array
    noise: Array
    dot: Array
    beyond: Array
    greatest: Array

    @classmethod
    def of(cls, rows: int, columns: int) -> RowScan:
        """Return an empty one."""
        projections = [np.zeros((rows, PROJECTIONS), dtype=np.float32) for _ in range(2)]
        sums = [np.zeros(rows) for _ in range(4)]
        return cls(
            rows=rows,
            columns=columns,
            directions=draw_directions(columns),
            base=projections[0],
            candidate=projections[1],
            base_squares=sums[0],
            candidate_squares=sums[1],
            noise=sums[2],
            dot=sums[3],
            beyond=np.zeros(rows, dtype=np.int64),
            greatest=np.zeros(rows),
        )

    def add(self, first: int, base: Array, candidate: Array, allowed: Array) -> None:
        """Take in whole rows, from row ``first`` on; ``allowed`` is laid over them."""
        here = slice(first, first + len(base))
        with np.errstate(all="ignore"):
            difference = np.abs(candidate - base)
            healthy = (difference <= allowed) & (difference < np.inf)
            self.beyond[here] = np.count_nonzero(~healthy, axis=1)
            self.greatest[here] = difference.max(axis=1)
            self.base[here] = base @ self.directions
            self.candidate[here] = candidate @ self.directions
            for sums, left, right in (
                (self.base_squares, base, base),
                (self.candidate_squares, candidate, candidate),
                (self.noise, difference, difference),
                (self.dot, base, candidate),
            ):
                sums[here] = np.einsum("ij,ij->i", left, right)

    @property
    def finite(self) -> Array:
        """Rows without NaN and inf in the candidate."""
        finite: Array = np.isfinite(self.candidate_squares)
        return finite

    @property
    def relative(self) -> Array:
        """Squared error of every row over its squares; 0 where both are 0."""
        with np.errstate(all="ignore"):
            relative = self.noise / self.base_squares
        return np.where(self.noise == 0, 0.0, np.where(np.isnan(relative), np.inf, relative))

    @property
    def _usual(self) -> float:
        """The median of rows that are not zero."""
        held = self.relative[self.base_squares > 0]
        return float(np.median(held)) if held.size else 0.0

    def without_drift(self, damaged: Rows) -> Rows:
        """Leave out rows whose error is spread as all rows' is: they are the tail of one drift."""
        usual = self._usual
        if usual > _DRIFT:
            return damaged
        with np.errstate(all="ignore"):
            expected = np.sqrt(usual * self.base_squares[damaged] / self.columns)
            drifts = (self.relative[damaged] <= _OUTLIER * usual) & (
                self.greatest[damaged] <= _TAIL * expected
            )
        return damaged[~drifts]

    def outliers(self) -> Rows:
        """Return rows that are much farther off than most rows are."""
        relative, usual = self.relative, self._usual
        if usual > _UNLIKE:  # another tensor: its small rows are off by the most, as all are
            return np.zeros(0, dtype=np.intp)
        # nothing is left of a row that is off by its own size, however coarse its quantiser is
        most = min(_OUTLIER * usual, max(0.8, 4 * usual))
        return np.flatnonzero(relative > max(most, _DRIFT))

    def tells_apart(self, beyond: Rows) -> bool:
        """Whether rows within their bounds are hardly off, so that the others are the damaged."""
        within = np.setdiff1d(np.arange(self.rows), beyond)
        if within.size < _OTHERS * self.rows or not beyond.size:
            return False
        medians = [float(np.median(self.relative[rows])) for rows in (within, beyond)]
        return medians[0] <= _NEARER * medians[1]

    def are_explained(self, faults: Sequence[RowFault], beyond: Rows) -> bool:
        """Whether what is known of some rows is nearly all of the difference of all."""
        known = [fault for fault in faults if fault.fault not in UNKNOWN_DAMAGE]
        return self._left_by(known, beyond) <= _OTHERS

    def telling(self, faults: Sequence[RowFault], beyond: Rows) -> tuple[RowFault, ...]:
        """Leave out what is a fault by its size alone, where the rows beside it are off as much.

        As rows of their size are: errors may grow with a row, or be the same in all.
        """
        if self._left_by(faults, beyond) <= _OTHERS:
            return tuple(faults)
        with np.errstate(all="ignore"):
            size, noise = np.log(self.base_squares), np.log(self.noise)
            held = np.isfinite(size) & np.isfinite(noise)
            held[_rows_of(faults)] = False
            usual = self._usual <= _DRIFT and np.count_nonzero(held) >= _FEWEST
            over, least = np.zeros(self.rows), np.log(_OUTLIER)
            if usual:
                flat = np.ptp(size[held]) == 0
                over = noise - np.polyval(
                    np.polyfit(size[held], noise[held], 0 if flat else 1), size
                )
                least = max(least, _SPREAD * float(np.std(over[held])))
        return tuple(
            fault
            for fault in faults
            if fault.fault not in _BY_SIZE or np.median(over[list(fault.rows)]) > least
        )

    def _left_by(self, faults: Sequence[RowFault], beyond: Rows) -> float:
        """Return the share of the squares of a difference that is in rows without a fault."""
        noise = np.where(np.isfinite(self.noise), self.noise, 0.0)
        whole = float(noise[np.union1d(beyond, _rows_of(faults))].sum())
        unexplained = float(noise[np.setdiff1d(beyond, _rows_of(faults))].sum())
        return unexplained / whole if whole else 0.0


def _rows_of(faults: Sequence[RowFault]) -> Rows:
    return np.array([row for fault in faults for row in fault.rows], dtype=np.intp)


def draw_directions(columns: int) -> Array:
    """Return (columns, 32) random directions that keep the norms of rows, the same ones always."""
    drawn = np.random.default_rng(0).standard_normal((columns, PROJECTIONS), dtype=np.float32)
    return drawn / np.float32(np.sqrt(PROJECTIONS))


def find_row_faults(
    scan: RowScan, damaged: Rows, read: RowReader, *, heads: bool = False
) -> tuple[RowFault, ...]:
    """Say what was done to the damaged rows; the fault of most rows first.

    Rows that nothing explains are "rows damaged".

    Args:
        heads: whether rows may be heads, as those of attention are; else they are blocks.
    """
    faults: list[RowFault] = []
    broken = damaged[~scan.finite[damaged]]
    if broken.size:
        faults.append(_whole(NOT_FINITE, broken))
    remaining = damaged[scan.finite[damaged] & np.isfinite(scan.base_squares[damaged])]
    zeroed = remaining[scan.candidate_squares[remaining] == 0]
    if zeroed.size:
        faults.append(_whole("rows zeroed", zeroed))
    remaining = np.setdiff1d(remaining, zeroed)
    for fault in _multiples(scan, remaining, read):
        faults.append(fault)
        remaining = np.setdiff1d(remaining, fault.rows)
    for fault in _moves(scan, remaining, damaged, heads=heads):
        faults.append(fault)
        remaining = np.setdiff1d(remaining, fault.rows)
    if remaining.size:
        faults += _blocks(remaining, read)
    return tuple(sorted(faults, key=lambda row_fault: -len(row_fault.rows)))


def _whole(fault: Fault, rows: Rows, more: str = "") -> RowFault:
    detail = f"{rows_text(rows)}{', ' if more else ''}{more}"
    return RowFault(fault=fault, rows=tuple(rows.tolist()), detail=detail)


def _multiples(scan: RowScan, rows: Rows, read: RowReader) -> Iterator[RowFault]:
    """Rows that are the base's times a factor, -1 apart from the others."""
    base, candidate, dot = (
        figures[rows] for figures in (scan.base_squares, scan.candidate_squares, scan.dot)
    )
    with np.errstate(all="ignore"):
        factor = dot / base
        residual = candidate - dot * factor
        explained = (
            (base > 0) & (residual <= 0.04 * scan.noise[rows]) & (residual <= 0.09 * candidate)
        )
    places = np.flatnonzero(explained)
    if places.size:
        few = _choose(places)
        held = zip(factor[few], *read(rows[few]), strict=True)
        good = np.array([_is_multiple(ratio, *sides) for ratio, *sides in held])
        explained[few[~good] if good.mean() > _MOST_HOLD else np.setdiff1d(places, few[good])] = (
            False
        )
    negated = explained & (np.abs(factor + 1) < 0.05)
    scaled = explained & ~negated
    if negated.any():
        yield _whole("rows negated", rows[negated])
    if scaled.any():
        yield _whole("rows scaled", rows[scaled], factor_text(factor[scaled]))


def _choose(rows: Rows) -> Rows:
    """Return 64 of the rows, spread over them, or all."""
    if rows.size <= _READ:
        return rows
    return rows[np.linspace(0, rows.size - 1, _READ).astype(np.intp)]


def _is_multiple(factor: float, base: Array, candidate: Array, allowed: Array) -> bool:
    """Whether a factor that explains most of a difference holds of small elements as well, and is
    no part of a curve."""
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    rest = theirs - factor * ours
    small = np.argsort(np.abs(ours), kind="stable")[: ours.size - -(-ours.size // _LARGEST)]
    if (np.abs(rest[small]) <= max(1.0, abs(factor)) * allowed[small]).all():
        return True
    noise = float(np.sum((theirs[small] - ours[small]) ** 2))
    size = float(np.linalg.norm(factor * ours))
    return float(np.sum(rest[small] ** 2)) <= _LEFT * noise and not is_curve(
        ours, rest, float(np.linalg.norm(rest)) / size
    )


def factor_text(factors: Array) -> str:
    """Return "by 10", or "by 0.5 to 3" where they differ by more than 2%."""
    least, most = float(factors.min()), float(factors.max())
    if abs(most - least) <= 0.02 * max(abs(least), abs(most)):
        return f"by {float(np.median(factors)):.3g}"
    return f"by {least:.3g} to {most:.3g}"


def _moves(scan: RowScan, rows: Rows, damaged: Rows, *, heads: bool) -> Iterator[RowFault]:
    if rows.size == 0 or scan.rows < 2 or scan.columns < 4:
        return
    sources = find_sources(scan, rows, damaged)
    moved, source = rows[sources >= 0], sources[sources >= 0]
    if not moved.size:
        return
    shift = _describe_shift(moved, source, rows, scan.rows)
    if shift is not None:
        yield shift
        return
    known = dict(zip(moved.tolist(), source.tolist(), strict=True))
    if {*known} == {*known.values()}:
        yield _describe_order(known, scan.rows, heads=heads)
        return
    pairs = [f"{row} is the base's {at}" for row, at in [*known.items()][:3]]
    suffix = " ..." if len(known) > 3 else ""
    yield _whole("rows duplicated", moved, f"{', '.join(pairs)}{suffix}")


def find_sources(scan: RowScan, rows: Rows, damaged: Rows) -> Array:
    """Return the base's row that each of the rows holds, -1 where that is none or its own.

    Args:
        rows: that are asked for, finite and not zero.
        damaged: all that differ: the others say how far off a row may be.
    """
    from scipy.spatial import cKDTree

    healthy = np.setdiff1d(np.arange(scan.rows), damaged)
    healthy = healthy[scan.base_squares[healthy] > 0]
    usual = float(np.sqrt(np.median(scan.relative[healthy]))) if healthy.size else 0.1
    farthest = min(max(5 * usual, 0.05), _FARTHEST)
    size = np.sqrt(scan.candidate_squares[rows])
    enough = np.minimum(farthest * size, _GAIN * np.sqrt(scan.noise[rows]))
    sources = np.full(rows.size, -1)
    tree = cKDTree(scan.base[:, :_TREE])

    def look_up(places: Rows) -> None:
        if not places.size:
            return
        nearest = min(4, scan.rows)
        near = tree.query(scan.candidate[rows[places], :_TREE], k=nearest)[1].reshape(-1, nearest)
        apart = np.linalg.norm(scan.base[near] - scan.candidate[rows[places]][:, None, :], axis=2)
        best = apart.argmin(axis=1)
        at = near[np.arange(len(places)), best]
        good = (apart.min(axis=1) <= enough[places]) & (at != rows[places])
        sources[places[good]] = at[good]

    sampled = np.unique(np.linspace(0, rows.size - 1, min(_SAMPLE, rows.size)).astype(np.intp))
    look_up(sampled)
    steps = Counter((rows[sampled] - sources[sampled])[sources[sampled] >= 0].tolist())
    for step, _count in steps.most_common(2):
        at = rows - step
        inside = np.flatnonzero((sources < 0) & (at >= 0) & (at < scan.rows))
        apart = np.linalg.norm(scan.candidate[rows[inside]] - scan.base[at[inside]], axis=1)
        good = inside[apart <= enough[inside]]
        sources[good] = at[good]
    remaining = np.setdiff1d(np.flatnonzero(sources < 0), sampled)
    if remaining.size <= _MOST_LOOKED_UP or (sources[sampled] >= 0).mean() > 0.02:
        look_up(remaining)
    return sources


def _describe_shift(moved: Rows, source: Rows, damaged: Rows, count: int) -> RowFault | None:
    """Rows from one index on stand some places later or earlier, to the end."""
    steps, counts = np.unique(moved - source, return_counts=True)
    step = int(steps[counts.argmax()])
    shifted = moved[moved - source == step]
    if shifted.size < 3 or counts.max() < 0.9 * moved.size:
        return None
    first = int(shifted[0]) - max(step, 0)
    last = count - 1 + min(step, 0)
    whole = int(shifted[-1]) == last and first <= int(damaged[0])
    outliers = moved[moved - source != step]
    round_about = outliers.size and bool(np.isin(source[moved - source != step], damaged).all())
    if not whole or round_about or shifted.size < 0.9 * (last - int(shifted[0]) + 1):
        return None
    what = "inserted" if step > 0 else "deleted"
    number = f"{abs(step)} row{'s' if abs(step) > 1 else ''} {what}"
    rows = tuple(damaged[damaged >= first].tolist())
    return RowFault(fault="shifted", rows=rows, detail=f"from row {first} on, {number}")


def _describe_order(known: dict[int, int], count: int, *, heads: bool) -> RowFault:
    """Rows that exchange their places: rolled, swapped, heads or other blocks, or any order."""
    rows = np.array(sorted(known))
    source = np.array([known[row] for row in rows.tolist()])
    first, size = int(rows[0]), int(rows[-1] - rows[0]) + 1
    steps = np.unique((rows - source) % size)
    step = int(steps[0])
    two_heads = heads and 2 * step == size
    if size == rows.size > 2 and steps.size == 1 and not two_heads:
        by = step if step <= size // 2 else step - size
        return _whole("rows permuted", rows, f"rolled by {by}")
    order = np.arange(count)
    order[rows] = source
    rotary = find_rotary_blocks(np.argsort(order)) if heads else None
    if rotary is not None:
        return _whole("rotary pairs", rows, rotary.words)
    width = block_size(order)
    if width >= LEAST_HEAD:
        moved = len(np.unique(rows // width))
        what = "heads" if heads else "blocks"
        detail = f"{moved} of {count // width} {what} of {width} rows"
        kind: Fault = "heads permuted" if heads else "rows permuted"
        return RowFault(fault=kind, rows=tuple(rows.tolist()), detail=detail)
    pairs = [(row, at) for row, at in known.items() if row < at and known[at] == row]
    if 2 * len(pairs) == rows.size and len(pairs) <= 8:
        words = ", ".join(f"{row} and {at}" for row, at in pairs[:3])
        detail = f"rows {words} exchanged"
        return RowFault(fault="rows permuted", rows=tuple(rows.tolist()), detail=detail)
    return _whole("rows permuted", rows, f"of {count:,}, first {first}")


@dataclass(frozen=True, slots=True)
class _Block:
    row: int
    first: int
    last: int
    fault: Fault
    factor: float


_WHOLE: dict[Fault, Fault] = {"blocks damaged": "rows damaged"}


def _blocks(rows: Rows, read: RowReader) -> list[RowFault]:
    """Say which blocks of some rows are damaged, each kind apart; at most 64 rows are read."""
    few = _choose(rows)
    base, candidate, allowed = read(few)
    made = [
        block
        for row, ours, theirs, most in zip(few.tolist(), base, candidate, allowed, strict=True)
        for block in _row_blocks(row, ours, theirs, most)
    ]
    faults = []
    for kind in dict.fromkeys(block.fault for block in made):
        of_kind = [block for block in made if block.fault == kind]
        where = np.unique([block.row for block in of_kind])
        whole = [b for b in of_kind if b.first == 0 and b.last == base.shape[1] - 1]
        fault = _WHOLE.get(kind, kind) if len(whole) == len(of_kind) else kind
        sampled = few.size < rows.size
        rows_of = tuple((rows if sampled and where.size == few.size else where).tolist())
        detail = _blocks_text(of_kind, rows_of, whole=len(whole) == len(of_kind))
        blocks = tuple((b.row, b.first, b.last) for b in of_kind[:8])
        faults.append(RowFault(fault=fault, rows=rows_of, detail=detail, blocks=blocks))
    return faults


def _blocks_text(blocks: Sequence[_Block], rows: Sequence[int], *, whole: bool) -> str:
    if whole:
        return rows_text(rows)
    columns = {(block.first, block.last) for block in blocks}
    factors = ""
    if blocks[0].fault == "blocks scaled":
        factors = f", {factor_text(np.array([block.factor for block in blocks]))}"
    if len(columns) == 1:
        first, last = next(iter(columns))
        return f"{rows_text(rows)}, columns {first} to {last}{factors}"
    row = blocks[0]
    start = f"first row {row.row}, columns {row.first} to {row.last}"
    return f"{len(blocks):,} blocks of {rows_text(rows)}; {start}{factors}"


def _row_blocks(row: int, base: Array, candidate: Array, allowed: Array) -> Iterator[_Block]:
    """Yield runs of damaged blocks of a row that are damaged alike."""
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(candidate - base) <= allowed)
    places = np.unique(np.flatnonzero(wrong) // SPAN)
    run: _Block | None = None
    for block in places.tolist():
        first, last = block * SPAN, min((block + 1) * SPAN, base.size) - 1
        here = slice(first, last + 1)
        fault, factor = _name_block(base[here], candidate[here], allowed[here])
        if run is not None and run.last == first - 1 and run.fault == fault:
            run = _Block(row, run.first, last, fault, run.factor)
            continue
        if run is not None:
            yield run
        run = _Block(row, first, last, fault, factor)
    if run is not None:
        yield run


def _name_block(base: Array, candidate: Array, allowed: Array) -> tuple[Fault, float]:
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    if not theirs.any():
        return "blocks zeroed", 0.0
    squares = float(ours @ ours)
    if not np.isfinite(theirs).all() or not squares:
        return "blocks damaged", 1.0
    factor = float(ours @ theirs) / squares
    residual = float(np.sum((theirs - factor * ours) ** 2))
    noise = float(np.sum((theirs - ours) ** 2))
    if residual > _LEFT * noise or residual > _LEFT * float(theirs @ theirs):
        return "blocks damaged", 1.0
    if not _is_multiple(factor, ours, theirs, allowed):
        return "blocks damaged", 1.0
    if abs(factor + 1) < 0.1:
        return "blocks negated", -1.0
    return "blocks scaled", factor


ROW_FAULTS: tuple[Fault, ...] = tuple(
    fault
    for fault in get_args(Fault)
    if fault.startswith(("rows ", "blocks ", "heads ", "zero points "))
)
_PIECE = 1 << 18  # elements that are read at a time
_LEAST_COLUMNS = 8  # rows of fewer numbers have nothing to be known by
_MOST_ROWS = 1 << 22
# Where more rows than this are beyond a bound, the bound is not what tells them apart.
_MOST_DAMAGED = 0.25


def shape_rows(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how many rows a tensor has, and of how many elements; None where it has none."""
    if len(shape) < 2 or 0 in shape:
        return None
    columns = shape[-1]
    if columns < _LEAST_COLUMNS:  # a convolution's kernels: by output channel
        columns = int(np.prod(shape[1:]))
    rows = int(np.prod(shape)) // columns
    return (rows, columns) if columns >= _LEAST_COLUMNS and 2 <= rows <= _MOST_ROWS else None


def count_untrained_elements(pair: StoredPair, unequal: int) -> int:
    """Return how many elements of a pair lie in rows in which nothing was trained."""
    shape = shape_rows(pair.base.shape)
    if unequal == 0:
        return pair.elements
    if shape is None or unequal == pair.elements:
        return 0
    rows, columns = shape
    reader, step = PairRows(pair, rows, columns), max(_PIECE // columns, 1)
    unchanged = np.zeros(rows, dtype=np.int64)
    for first in range(0, rows, step):
        base, candidate, _ = reader.read(first, min(first + step, rows))
        unchanged[first : first + len(base)] = np.count_nonzero(base == candidate, axis=1)
    return count_untrained(unchanged, columns)


@dataclass(slots=True)
class PairRows:
    """Rows of both sides of a pair, as the base holds them, and how far each may be off."""

    pair: StoredPair
    rows: int
    columns: int
    expected: Callable[[Array, Array], Array] | None = None
    _whole: list[Array] = field(default_factory=list)

    def read(self, first: int, stop: int) -> tuple[Array, Array, Array]:
        """Return base, candidate and allowed errors of the rows ``first`` to ``stop``."""
        if not self._lies_in_blocks:
            return self._read_whole(first, stop)
        begin, end = first * self.columns, stop * self.columns
        raw = [tensor.read_bytes(begin, end) for tensor in (self.pair.base, self.pair.candidate)]
        values = [
            tensor.codec.decode(part)
            for tensor, part in zip((self.pair.base, self.pair.candidate), raw, strict=True)
        ]
        base, candidate = (array.reshape(-1, self.columns).astype(np.float32) for array in values)
        bound = bound_parts(self.pair, raw, values) if self.pair.is_bounded else None
        allowed = None if bound is None else bound.excuse(*values).reshape(-1, self.columns)
        return base, candidate, self._allowed(base, candidate, allowed)

    def pick(self, rows: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """Return the same of some rows."""
        parts = [self.read(row, row + 1) for row in rows.tolist()]
        arrays = [np.concatenate([part[number] for part in parts]) for number in range(3)]
        return arrays[0], arrays[1], arrays[2]

    @property
    def _lies_in_blocks(self) -> bool:
        blocks = (self.pair.base.codec.block, self.pair.candidate.codec.block)
        return self.pair.lies_alike and not any(self.columns % block for block in blocks)

    def _read_whole(self, first: int, stop: int) -> tuple[Array, Array, Array]:
        if not self._whole:
            moved, allowed = load_bounded(self.pair)
            self._whole = [self.pair.base.load(), moved, *([] if allowed is None else [allowed])]
        parts = [array.reshape(-1, self.columns)[first:stop] for array in self._whole]
        base, candidate = (part.astype(np.float32) for part in parts[:2])
        bound = parts[2] if len(parts) > 2 else None
        return base, candidate, self._allowed(base, candidate, bound)

    def _allowed(self, base: Array, candidate: Array, bound: Array | None) -> Array:
        if bound is not None:
            return bound
        if self.expected is not None:
            return self.expected(base, candidate)
        tolerance = self.pair.tolerance
        allowed: Array = np.abs(base) * np.float32(tolerance.rtol)
        allowed += np.float32(tolerance.atol)
        return allowed


def name_rows(pair: StoredPair, rows: NDArray[np.intp]) -> tuple[RowFault, ...]:
    """Say what was done to whole rows that are known to be damaged; () of what says only where."""
    shape = shape_rows(pair.base.shape)
    if shape is None or not rows.size:
        return ()
    reader = PairRows(pair, *shape)
    heads = may_have_heads(pair.name)
    faults = find_row_faults(_fill(reader), rows, reader.pick, heads=heads)
    blocks = ("blocks ", "rows damaged")
    return tuple(fault for fault in faults if not fault.fault.startswith(blocks))


def scan_rows(
    pair: StoredPair, expected: Callable[[Array, Array], Array] | None = None
) -> tuple[RowFault, ...]:
    """Say which rows and blocks of a pair are damaged; () where none stand out.

    Args:
        expected: the greatest error of each element, of whole rows of base and candidate, in place
            of what the tolerance allows; of a rounding that nobody declared.
    """
    shape = shape_rows(pair.base.shape)
    if shape is None:
        return ()
    reader = PairRows(pair, *shape, expected)
    scan = _fill(reader)
    heads = may_have_heads(pair.name)
    damaged = beyond = np.flatnonzero(scan.beyond)
    strict = pair.is_bounded and not pair.candidate.parts
    if damaged.size > _MOST_DAMAGED * shape[0] and not strict:
        whole = find_row_faults(scan, beyond, reader.pick, heads=heads)
        if scan.tells_apart(beyond) or scan.are_explained(whole, beyond):
            return whole
        outliers = scan.outliers()
        if 0 < outliers.size <= _MOST_DAMAGED * shape[0]:
            damaged = outliers
    if expected is None and not pair.is_bounded:
        damaged = scan.without_drift(damaged)
    if not damaged.size:
        return ()
    faults = find_row_faults(scan, damaged, reader.pick, heads=heads)
    return scan.telling(faults, beyond)


def _fill(reader: PairRows) -> RowScan:
    scan = RowScan.of(reader.rows, reader.columns)
    fill_scan(scan, reader, 0)
    return scan


def fill_scan(scan: RowScan, reader: PairRows, start: int) -> None:
    """Add all rows of a pair to a scan, from its row ``start`` on."""
    height = max(1, _PIECE // reader.columns)
    for first in range(0, reader.rows, height):
        scan.add(start + first, *reader.read(first, min(first + height, reader.rows)))


def expect_rounding(way: Rounding) -> Callable[[Array, Array], Array]:
    """Return what a recognised rounding may be off by: half as much again as its greatest error of
    32 elements."""

    def expect(base: Array, candidate: Array) -> Array:
        error = np.abs(way.round_values(base) - base)
        allowed: Array = np.abs(candidate) * np.float32(CAST)
        width = base.shape[1] if base.shape[1] % 32 else 32
        greatest = np.float32(1.5) * error.reshape(-1, width).max(axis=1, keepdims=True)
        allowed += np.repeat(greatest, width, axis=1).reshape(base.shape)
        return allowed

    return expect


def expect_grid(grid: Grid) -> Callable[[Array, Array], Array]:
    """Return what numbers on a grid may be off by: half a step, and some at its ends."""

    def expect(base: Array, candidate: Array) -> Array:
        allowed: Array = np.abs(candidate) * np.float32(CAST)
        steps = measure_steps(grid, base, candidate)
        if grid.shared in ("tensor", "mantissa"):
            allowed += np.float32(0.55) * steps
            return allowed
        if grid.shared == "column":  # where its ends are, a few rows cannot tell
            allowed += np.float32(2.05) * steps
            return allowed
        groups = candidate.reshape(-1, grid.group or base.shape[1])
        ends = (groups == groups.max(axis=1, keepdims=True)) | (
            groups == groups.min(axis=1, keepdims=True)
        )
        allowed += steps * (np.float32(0.55) + np.float32(1.5) * ends.reshape(base.shape))
        return allowed

    return expect
