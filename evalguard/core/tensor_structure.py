"""Faults of layout: a tensor that is another one transposed, permuted, scaled or shifted.

Each is proposed by something cheap and then proven: undone, the candidate has to agree with the
base far better than before. A rounding on top (a transposed tensor in bfloat16) is allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.name_map import ORDERS, Permutation
from evalguard.core.precision_vote import BFLOAT16_BITS, round_float16, round_mantissa

Array = NDArray[Any]
Fault = Literal[
    # of whole tensors
    "transposed", "reshaped", "columns permuted", "rotary pairs", "zeroed", "constant", "scaled",
    "plus a constant", "stored as its exponential", "stored as its logarithm", "shifted",
    "swapped", "stale tied head", "pruned", "low rank", "not finite",
    # of some rows (heads are blocks of them), and of blocks within rows
    "rows appended", "rows cut off",
    "rows permuted", "heads permuted", "rows duplicated", "rows zeroed", "rows negated",
    "rows scaled", "rows damaged",
    "blocks zeroed", "blocks negated", "blocks scaled", "blocks damaged",
    # of packed weights
    "zero points off", "scales rolled", "rescaled", "rotated",
    # of scales of activations and caches
    "never calibrated",
    # of merges of an adapter
    "adapter scaled",
]  # fmt: skip
# These say where, and not what was done.
UNKNOWN_DAMAGE: frozenset[Fault] = frozenset({"rows damaged", "blocks damaged"})
NOT_FINITE: Fault = "not finite"
# Undone, the error has to fall to a tenth, and below what a rounding to int4 leaves: chance never
# does that in a matrix. What is left after a factor of 1.0005 is far less than that too, as long as
# no rounding hides it.
_GAIN = 0.1
_ROUNDED = 0.25
# Of values on levels far apart, what rounding to these leaves may be more, but not half of it all.
_OF_LEVELS, _MOST_OF_LEVELS = 2.0, 0.5
_LEAST_OF_LEVELS = 64  # elements of a row: of fewer another one may be as near by chance
_PROJECTIONS, _MORE_PROJECTIONS = 8, 128  # where rounding leaves more than this
_COARSE = 0.05
_PAIRS_AT_ONCE = 2**24  # 64 MB of distances
# Rows that are looked at before all are, and the relative error of theirs above which they are
# others: what is proven leaves less, and the nearest of 50,000 random rows of 64 leaves more.
_SEEN_FIRST, _UNRELATED = 64, 0.75
LEAST_HEAD = 8  # rows: fewer that move together are no head
_LEAST_DISTINCT = 8  # numbers of a vector; of fewer another one may hold the same by chance
_TELLING = 2.0**-6  # of an element: less than its neighbours in bfloat16 may be a rounding
LARGEST_SEARCHED = 1 << 25  # elements of a tensor that callers search: 128 MB a side
_MOST_HEADS = 1024
_CURVED = 0.5  # of what is left of a factor or a constant: more of it no rounding bends alike
_LEAST_OF_CURVE = 4  # numbers: a line goes through two
_LARGEST_EXPONENT = 80.0  # of which float32 holds the exponential
_BEND = 4.0  # times what storing loses: a curve is that far from a line
_EXACT = 1e-5  # of the base's norm: below are float32's own roundings
_BENT = 1 << 13  # elements by which a curve is known
LikenessKind = Literal["precision", "structure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """What a difference looks like.

    Attributes:
        kind: "precision": the rounding itself was recognised, or the values lie on its grid;
            "structure": a fault of layout, or of rows and blocks.
        name: "bf16", "transposed".
        fault: of a structure, the same as its name.
        detail: "groups of 32", "by 1.02".
        rule: keys of a name map's rule that undo it, in YAML; "" where there are none.
        left: relative L2 error that is left once a structure is undone.
    """

    kind: LikenessKind
    name: str
    detail: str = ""
    fault: Fault | None = None
    rule: str = ""
    left: float | None = None

    @property
    def words(self) -> str:
        """Name and detail."""
        return f"{self.name} ({self.detail})" if self.detail else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureFault:
    """What was done to a tensor beside rounding.

    Attributes:
        detail: for people: "by 1.02", "by one along axis 0".
        by: the factor, the constant or the rank; None of other faults.
        left: relative L2 error that is left once it is undone.
        rule: what a rule of a name map would need to undo it, as YAML; "" where none can.
    """

    fault: Fault
    detail: str = ""
    left: float
    rule: str = ""
    by: float | None = None


ZEROED = StructureFault(fault="zeroed", left=1.0)


def find_structure(
    base: Array, candidate: Array, *, heads: bool = False, rounding: float = 0.0
) -> StructureFault | None:
    """Say which fault of layout makes the candidate differ from the base, None if none does.

    Args:
        base, candidate: whole tensors in float32, finite; their shapes may differ.
        heads: whether their rows or columns may be heads, as those of attention are; else they are
            blocks.
        rounding: relative L2 error that the levels of a packed candidate leave.
    """
    if base.size != candidate.size or not base.size:
        return None
    if base.shape != candidate.shape:
        return _find_reshaped(base, candidate)
    if not candidate.any():
        return ZEROED if base.any() else None
    if base.ndim > 1 and base.size == max(base.shape):  # a vector, for which there is no rule
        fault = find_structure(base.reshape(-1), candidate.reshape(-1), heads=heads)
        return None if fault is None else replace(fault, rule="")
    if candidate.ndim < 2 or min(candidate.shape) < _LEAST_OF_LEVELS:
        rounding = 0.0
    return find_factor(base, candidate) or _first_proven(
        _rearrangements(base, candidate, heads=heads, rounding=rounding), base, candidate, rounding
    )


def find_factor(base: Array, candidate: Array) -> StructureFault | None:
    """Say whether the candidate is the base times or plus a constant; a part of both will do.

    Or its exponential or logarithm, of either sign, as decay rates are stored (A and A_log).
    """
    return _find_curve(base, candidate) or _first_proven(_factors(base, candidate), base, candidate)


def _find_curve(base: Array, candidate: Array) -> StructureFault | None:
    """Say whether every element is the exponential or the logarithm of the base's, up to what the
    two are stored in, and bent enough to be no line."""
    here, there = (tensor.ravel() for tensor in (base, candidate))
    step = -(-here.size // _BENT)
    if step > 1 and not any(_curves(here[::step], there[::step])):
        return None
    here, there = (vector.astype(np.float64) for vector in (here, there))
    for fault, detail, curve, allowed in _curves(here, there):
        line = np.stack([np.ones_like(here), here], axis=1)
        bent = np.linalg.norm(there - line @ np.linalg.lstsq(line, there, rcond=None)[0])
        is_distinct = len(np.unique(here)) >= _LEAST_OF_CURVE
        if is_distinct and bent > _BEND * np.linalg.norm(allowed):
            return StructureFault(fault=fault, detail=detail, left=_relative(there - curve, there))
    return None


def _curves(base: Array, candidate: Array) -> Iterator[tuple[Fault, str, Array, Array]]:
    """Yield each curve on which every element lies, and how far off storing lets each be."""
    here, there = (tensor.astype(np.float64) for tensor in (base, candidate))
    lost = [stored_precision(vector) for vector in (here, there)]
    made: list[tuple[Fault, str, Array, Array]] = []
    if np.abs(here).max() < _LARGEST_EXPONENT:
        curve = np.copysign(np.exp(here), there[0])
        detail = "exp(x)" if there[0] > 0 else "-exp(x)"
        made.append(("stored as its exponential", detail, curve, curve * here))
    if (here > 0).all() or (here < 0).all():
        detail = "log(x)" if here[0] > 0 else "log(-x)"
        made.append(("stored as its logarithm", detail, np.log(np.abs(here)), np.ones_like(here)))
    for fault, detail, curve, slope in made:
        allowed = lost[0] * np.abs(slope) + lost[1] * np.abs(curve)
        if (np.abs(there - curve) <= allowed).all():
            yield fault, detail, curve, allowed


def stored_precision(values: Array) -> float:
    """What an element may have lost, relatively, in the narrowest type that holds all of them."""
    numbers = values.astype(np.float32)
    if np.array_equal(round_mantissa(numbers, BFLOAT16_BITS), numbers):
        return 2.0**-8
    return 2.0**-10 if np.array_equal(round_float16(numbers), numbers) else 2.0**-20


def find_exact(base: Array, candidate: Array, relative: float) -> list[StructureFault]:
    """Return the constant and the factor that explain every single element, the better one first.

    Both do where all elements are alike; then 1 is a constant and anything else a factor.

    Args:
        relative: what the candidate's dtype loses, of an element.
    """
    here, there = (tensor.ravel().astype(np.float64) for tensor in (base, candidate))
    size = float(np.linalg.norm(here))
    faults: list[StructureFault] = []
    lost = relative * np.maximum(np.abs(here), np.abs(there))
    constant = _shorten(float(np.median(there - here)), float(np.median(lost)))
    if constant and (np.abs(there - here - constant) <= lost + relative * abs(constant)).all():
        error_left = float(np.linalg.norm(there - constant - here)) / size if size else 0.0
        faults.append(_plus(constant, error_left))
    nonzero = here != 0
    if nonzero.any() and not there[~nonzero].any():
        factor = float(np.median(there[nonzero] / here[nonzero]))
        factor = _shorten(factor, relative * abs(factor))
        if factor not in (0.0, 1.0) and (np.abs(there - factor * here) <= 2 * lost).all():
            error_left = float(np.linalg.norm(there / factor - here)) / size
            faults.append(_times(factor, error_left, 6))
    if abs(constant) != 1.0:
        faults.reverse()
    return faults


def _shorten(value: float, lost: float) -> float:
    """Return the shortest number that is no further away than what rounding loses."""
    for digits in range(1, 7):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= lost:
            return short
    return value


def _times(factor: float, left: float, digits: int) -> StructureFault:
    words = "by -1 (other sign)" if abs(factor + 1) < 1e-6 else f"by {factor:.{digits}g}"
    rule = f"scale: {1 / factor:.9g}"
    return StructureFault(fault="scaled", detail=words, left=left, rule=rule, by=factor)


def _plus(constant: float, left: float) -> StructureFault:
    return StructureFault(
        fault="plus a constant",
        detail=f"{constant:+.6g}",
        left=left,
        rule=f"add: {-constant:.9g}",
        by=constant,
    )


def _first_proven(
    proposals: Iterator[StructureFault], base: Array, candidate: Array, rounding: float = 0.0
) -> StructureFault | None:
    before = _relative(candidate - base, base)
    if before == 0.0 or not math.isfinite(before):
        return None
    enough = min(_GAIN * before, _ROUNDED)
    enough = max(enough, min(_OF_LEVELS * rounding, _MOST_OF_LEVELS * before))
    return next((proposal for proposal in proposals if proposal.left <= enough), None)


def _rearrangements(
    base: Array, candidate: Array, *, heads: bool, rounding: float
) -> Iterator[StructureFault]:
    if base.ndim < 1 or base.size < 4:
        return
    yield from _shifts(base, candidate)
    yield from _halves(base, candidate, heads=heads)
    if base.ndim >= 2:
        rows, their_rows = (tensor.reshape(tensor.shape[0], -1) for tensor in (base, candidate))
        if rows.shape[0] == rows.shape[1] and _may_agree(rows, their_rows.T):
            yield StructureFault(
                fault="transposed",
                left=_relative(their_rows.T - rows, rows),
                rule="transpose: [1, 0]",
            )
        elif base.ndim == 2 and min(rows.shape) > 1 and rows.shape[0] != rows.shape[1]:
            turned = their_rows.reshape(rows.shape[::-1]).T
            if _may_agree(rows, turned):
                yield StructureFault(
                    fault="transposed",
                    detail="stored under the old shape",
                    left=_relative(turned - rows, rows),
                    rule=f"reshape: [{rows.shape[1]}, {rows.shape[0]}]\n  transpose: [1, 0]",
                )
        if heads:
            yield from _rotary(rows, their_rows)
        yield from _permutations(rows, their_rows, heads=heads, rounding=rounding)
    else:
        if heads:
            yield from _rotary(base[:, None], candidate[:, None])
        index = _find_element_order(base, candidate)
        if index is not None:
            yield _describe_order(index, candidate[index] - base, base, 0, "elements")


def _find_reshaped(base: Array, candidate: Array) -> StructureFault | None:
    """Say how two tensors of one size and other shapes belong together."""
    shape = f"[{', '.join(map(str, base.shape))}]"
    error_left = _relative(candidate.reshape(-1) - base.reshape(-1), base)
    if error_left <= _ROUNDED:
        return StructureFault(fault="reshaped", left=error_left, rule=f"reshape: {shape}")
    if candidate.ndim == base.ndim == 2 and candidate.T.shape == base.shape:
        error_left = _relative(candidate.T - base, base)
        if error_left <= _ROUNDED:
            return StructureFault(fault="transposed", left=error_left, rule="transpose: [1, 0]")
    if candidate.ndim == base.ndim > 2 and candidate.ndim <= 4:
        for axes in _axis_orders(candidate.shape, base.shape):
            error_left = _relative(candidate.transpose(axes) - base, base)
            if error_left <= _ROUNDED:
                return StructureFault(
                    fault="transposed",
                    detail=f"axes {list(axes)}",
                    left=error_left,
                    rule=f"transpose: {list(axes)}",
                )
    return None


def _axis_orders(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    from itertools import permutations

    for axes in permutations(range(len(shape))):
        if tuple(shape[axis] for axis in axes) == wanted:
            yield axes


def _factors(base: Array, candidate: Array) -> Iterator[StructureFault]:
    here, there = (tensor.ravel().astype(np.float64) for tensor in (base, candidate))
    squares, product, their_squares = float(here @ here), float(here @ there), float(there @ there)
    factor = product / squares if squares else 0.0
    least = 1 + 2 * _ROUNDED**2  # what is left by their angle: of more nothing is proven
    if factor and math.isfinite(factor) and squares * their_squares <= least * product**2:
        rest = there / factor - here
        error_left = float(np.linalg.norm(rest)) / math.sqrt(squares)
        if not is_curve(here, rest, error_left):
            # as many digits as a rounding on top leaves
            yield _times(factor, error_left, 4 if error_left > 1e-3 else 6)
    scatter = (
        their_squares - 2 * product + squares - float(there.sum() - here.sum()) ** 2 / here.size
    )
    constant = float(np.median(there - here)) if scatter <= 2 * _ROUNDED**2 * squares else 0.0
    if constant and squares:
        rest = there - constant - here
        error_left = float(np.linalg.norm(rest)) / math.sqrt(squares)
        if not is_curve(here, rest, error_left):
            yield _plus(constant, error_left)


def is_curve(base: Array, rest: Array, left: float) -> bool:
    """Whether what a factor or a constant leaves is a curve over the base: then the candidate is
    another function of it, an exponential or a square.

    Args:
        left: the norm of ``rest`` over the base's.
    """
    if left <= _EXACT:
        return False
    step = -(-base.size // _BENT)
    ours, theirs = base[::step], rest[::step]
    ours = ours / np.abs(ours).max(initial=1e-30)
    terms = np.stack([np.ones_like(ours), ours, ours**2, ours**3, np.abs(ours)], axis=1)
    free = len(ours) - terms.shape[1]
    squares = float(theirs @ theirs)
    if free < 1 or not squares:
        return False
    unexplained = theirs - terms @ np.linalg.lstsq(terms, theirs, rcond=None)[0]
    share = float(unexplained @ unexplained) / free * len(ours) / squares
    return bool(share < 1 - _CURVED)


def _shifts(base: Array, candidate: Array) -> Iterator[StructureFault]:
    """Propose a shift by one to either side, what is pushed out lost or at the other end."""
    for axis in range(min(base.ndim, 2)):
        if base.shape[axis] < 4:
            continue
        for step in (1, -1):
            part = slice(step, None) if step > 0 else slice(None, step)
            source = slice(None, -step) if step > 0 else slice(-step, None)
            moved = np.moveaxis(candidate, axis, 0)[part]
            first = np.moveaxis(base, axis, 0)[source]
            if base.ndim > 1 and not _may_agree(first, moved):
                continue
            yield StructureFault(
                fault="shifted",
                detail=f"by {'one' if step > 0 else 'minus one'} along axis {axis}",
                left=_relative(moved - first, first),
            )


def _halves(base: Array, candidate: Array, *, heads: bool) -> Iterator[StructureFault]:
    """Propose that a matrix of two halves (gate and up), or a stack of them, has the other one
    first, or the rows of both in turn. Halves of what has heads are heads."""
    if base.ndim == 3 and len(base) > 1:
        axes: tuple[int, ...] = (1, 2)
    else:
        axes = (0,) if base.ndim < 3 and not heads else ()
    for axis in axes:
        size = base.shape[axis]
        if size % 2 or size < 2 * _LEAST_HALF:
            continue
        places, ours = np.arange(size).reshape(2, -1), np.moveaxis(base, axis, 0)
        theirs = np.moveaxis(candidate, axis, 0)
        moved: Fault = "columns permuted" if axis == 2 else "rows permuted"
        along = f"halves along axis {axis}"
        orders: tuple[tuple[Array, Fault, str, str], ...] = (
            (places[::-1].ravel(), "swapped", f"two {along}", "{axis: 0, heads: 2, order: [1, 0]}"),
            (places[::-1].T.ravel(), "swapped", f"two interleaved {along}", ""),
            (places.T.ravel(), moved, f"two {along} interleaved", "{heads: 1, order: interleaved}"),
            (
                np.arange(size).reshape(-1, 2).T.ravel(), moved,
                f"every second one of axis {axis} first", "{heads: 1, order: halves}",
            ),
        )  # fmt: skip
        for order, fault, detail, rule in orders:
            # the base's place of what the candidate has at each
            few = np.flatnonzero(order != np.arange(size))[:16]
            if _relative(theirs[few] - ours[order[few]], ours[order[few]]) <= _ROUNDED:
                yield StructureFault(
                    fault=fault,
                    detail=detail,
                    left=_relative(theirs - ours[order], ours),
                    rule=f"permute: {rule}" if rule and axis == 0 else "",
                )


_LEAST_HALF = 2  # rows


def _rotary(base: Array, candidate: Array) -> Iterator[StructureFault]:
    """Propose the two orders of rotary pairs, for every number of heads that fits the rows."""
    size = base.shape[0]
    most = min(size // LEAST_HEAD, _MOST_HEADS)
    for order in ("interleaved", "halves"):
        for number in (n for n in range(1, most + 1) if size % (2 * n) == 0):
            index = Permutation(heads=number, order=order).index(size)
            # a few rows that move tell most orders apart, so that few matrices are built
            few = np.flatnonzero(index != np.arange(size))[:16]
            if not few.size or _relative(candidate[index[few]] - base[few], base[few]) > _ROUNDED:
                continue
            detail = f"{_apart(order)}, {number} head"
            yield StructureFault(
                fault="rotary pairs",
                detail=f"{detail}s" if number > 1 else detail,
                left=_relative(candidate[index] - base, base),
                rule=f"permute: {{heads: {number}, order: {order}}}",
            )


def _permutations(
    base: Array, candidate: Array, *, heads: bool, rounding: float
) -> Iterator[StructureFault]:
    """Propose an order of rows, then of columns."""
    for axis, words in ((0, "rows"), (1, "columns")):
        here, there = (base, candidate) if axis == 0 else (base.T, candidate.T)
        index = find_row_order(here, there, rounding)
        if index is not None:
            yield _describe_order(index, there[index] - here, here, axis, words, heads=heads)


def find_row_order(base: Array, candidate: Array, rounding: float = 0.0) -> Array | None:
    """Return where each row of the base stands in the candidate; None where they are others, or all
    stand where they did. ``rounding``: as of :func:`find_structure`.

    Each is found among the other side's by nearness, in a few random projections, which keep
    distances (Johnson-Lindenstrauss).
    """
    from scipy.spatial import cKDTree

    if base.shape[0] < 2 or base.shape[1] < 2:
        return None
    coarse = rounding > _COARSE
    count = _MORE_PROJECTIONS if coarse else _PROJECTIONS
    directions = np.random.default_rng(0).standard_normal((base.shape[1], count))
    ours, theirs = (rows @ directions.astype(np.float32) for rows in (base, candidate))
    tree = None if coarse else cKDTree(theirs)

    def find(some: Array) -> Array:
        nearest_rows: Array = _find_nearest(some, theirs) if tree is None else tree.query(some)[1]
        return nearest_rows

    first = slice(None, None, max(len(base) // _SEEN_FIRST, 1))
    if not _may_agree(base[first], candidate[find(ours[first])]):
        return None
    index = find(ours)
    stay = index == np.arange(len(index))
    return None if len(np.unique(index)) < 0.99 * len(index) or stay.all() else index


def _may_agree(base: Array, candidate: Array) -> bool:
    """Whether half of some rows are as near as no others are: asked before all are compared."""
    first = slice(None, None, max(len(base) // _SEEN_FIRST, 1))
    ours, theirs = (matrix[first].reshape(len(matrix[first]), -1) for matrix in (base, candidate))
    with np.errstate(over="ignore", invalid="ignore"):
        sizes, errors = (np.linalg.norm(matrix, axis=1) for matrix in (ours, theirs - ours))
    return bool(2 * np.count_nonzero(errors <= _UNRELATED * sizes) >= len(sizes))


def _find_nearest(ours: Array, theirs: Array) -> Array:
    """Return which row of theirs is nearest to each: over many axes no tree is faster."""
    squares = np.sum(theirs * theirs, axis=1)
    parts = np.array_split(ours, min(len(ours), -(-len(ours) * len(theirs) // _PAIRS_AT_ONCE)))
    return np.concatenate([np.argmin(squares - 2 * part @ theirs.T, axis=1) for part in parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryBlocks:
    """Rotary pairs in another order, in blocks that are parts of heads or whole ones.

    Attributes:
        order: of the candidate's, as a name map has it.
        count: of the blocks. width: rows of each.
    """

    order: str
    count: int
    width: int

    @property
    def words(self) -> str:
        """As "beside each other, 4 x 64 rows"."""
        return f"{_apart(self.order)}, {self.count} x {self.width} rows"


def find_rotary_blocks(index: Array) -> RotaryBlocks | None:
    """Say that all rows that moved did so inside blocks of rotary pairs, the last ones of each head
    for instance; None where they did otherwise.

    Args:
        index: where each row of the base stands in the candidate.
    """
    moved = np.flatnonzero(index != np.arange(len(index)))
    runs = np.split(moved, np.flatnonzero(np.diff(moved) > 1) + 1)
    width = len(runs[0]) + 2  # the first and the last row of a block stay
    starts = [int(run[0]) - 1 for run in runs if run.size == width - 2]
    if width < LEAST_HEAD or width % 2 or len(starts) < len(runs) or starts[0] < 0:
        return None
    for order in ORDERS:
        block = Permutation(heads=1, order=order).index(width)
        if all(np.array_equal(index[at : at + width], at + block) for at in starts):
            return RotaryBlocks(order=order, count=len(starts), width=width)
    return None


def _apart(order: str) -> str:
    return "beside each other" if order == "interleaved" else "half a head apart"


def _find_element_order(base: Array, candidate: Array) -> Array | None:
    """Return where each of a vector's elements stands in the candidate; None where they are others.

    Sorted, two vectors of one distribution are near each other, however little they have to do with
    one another: the numbers must be the same, up to a rounding to 16 bits on top.
    """
    if len(np.unique(base)) < min(_LEAST_DISTINCT, base.size):
        return None
    for held in (base, round_mantissa(base, BFLOAT16_BITS), round_float16(base)):
        moved = np.flatnonzero(held != candidate)
        places = moved[np.argsort(candidate[moved], kind="stable")]
        sources = moved[np.argsort(held[moved], kind="stable")]
        if moved.size and np.array_equal(held[sources], candidate[places]):
            far = np.abs(candidate[moved] - held[moved]) > _TELLING * np.abs(held[moved])
            index = np.arange(base.size)
            index[sources] = places
            return index if 2 * np.count_nonzero(far) > moved.size else None
    return None


def _describe_order(
    index: Array, left: Array, base: Array, axis: int, words: str, *, heads: bool = False
) -> StructureFault:
    """Say in which order rows, columns or a vector's elements stand.

    Args:
        left: the difference that is left once it is undone.
        heads: whether blocks of it may be heads.
    """
    blocks = 1 if words == "elements" else block_size(index)
    kind: Fault = "rows permuted" if axis == 0 else "columns permuted"
    regular = _regular_order(index, words)
    detail = regular or f"{_moved(index):,} of {len(index):,} {words}"
    order, by_blocks = index, ""
    if blocks > 1:
        order = index[::blocks] // blocks
        are_heads = heads and blocks >= LEAST_HEAD
        kind = "heads permuted" if are_heads else kind
        detail = f"{len(order)} {'heads' if are_heads else 'blocks'} of {blocks} {words}"
        by_blocks = f"heads: {len(order)}, "
    listed = ", ".join(map(str, order.tolist()))
    pairs = find_rotary_blocks(index) if heads and axis == 0 and blocks == 1 else None
    if pairs is not None:
        kind, detail = "rotary pairs", pairs.words
    if axis == 0 and blocks == 1 and _moved(index) == 2:
        two = np.flatnonzero(index != np.arange(len(index))).tolist()
        detail = f"{words} {' and '.join(map(str, two))} exchanged"
    short = len(order) <= 64 and len(np.unique(index)) == len(index)
    rule = f"permute: {{axis: {axis}, {by_blocks}order: [{listed}]}}" if short else ""
    return StructureFault(fault=kind, detail=detail, left=_relative(left, base), rule=rule)


def _regular_order(index: Array, words: str) -> str:
    """Return "reversed in each 32 columns", "rolled by 1 in each 256 rows", of an order that is one
    in each part of a width; "" of others."""
    size = len(index)
    for width in (divisor for divisor in range(3, size + 1) if size % divisor == 0):
        first = index[:width]
        if not np.array_equal(index, (first + np.arange(0, size, width)[:, None]).ravel()):
            continue
        where = f"in each {width} {words}" if width < size else f"all {size} {words}"
        step = int(first[0])
        if np.array_equal(first, np.arange(width)[::-1]):
            return f"reversed {where}" if width < size else f"{where} reversed"
        if np.array_equal(first, (np.arange(width) + step) % width):
            rolled = f"rolled by {step if 2 * step <= width else step - width}"
            return f"{rolled} {where}" if width < size else f"{where} {rolled}"
        return f"one order {where}, of {size:,}" if width < size else ""
    return ""


def block_size(index: Array) -> int:
    """Return the largest size of blocks that move as one; 1 where elements move alone."""
    size = len(index)
    for blocks in range(2, size // 2 + 1):
        width = size // blocks
        if size % blocks or width < 2:
            continue
        grid = index.reshape(blocks, width)
        if (grid[:, 0] % width == 0).all() and (np.diff(grid, axis=1) == 1).all():
            return width
    return 1


def shift_text(steps: Array) -> str:
    """Return "values shifted by one step", "by -1 or +15 steps", the most frequent first."""
    whole, counts = np.unique(steps.astype(int), return_counts=True)
    most = whole[np.argsort(-counts, kind="stable")][:3].tolist()
    if len(most) == 1 and abs(most[0]) == 1:
        return f"values shifted by one step{' down' if most[0] < 0 else ' up'}"
    return f"values shifted by {' or '.join(f'{step:+d}' for step in most)} steps"


def _moved(index: Array) -> int:
    return int(np.count_nonzero(index != np.arange(len(index))))


def _relative(difference: Array, base: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.linalg.norm(base))
        error = float(np.linalg.norm(difference))
    return error / size if size else (0.0 if error == 0.0 else math.inf)


FINGERPRINT = 64  # elements


def fingerprint_places(size: int) -> NDArray[np.intp]:
    """Return flat indices, spread over a tensor, by which tensors are told from one another."""
    if size <= FINGERPRINT:
        return np.arange(size)
    # not a whole part of any shape: a fixed step would stay in one column
    steps = (np.arange(FINGERPRINT) + 0.5) * 0.6180339887498949
    return np.unique((steps % 1.0 * size).astype(np.intp))


def find_swapped(base: dict[str, Array], candidate: dict[str, Array]) -> dict[str, str]:
    """Return name -> the base's name whose values the candidate has under it instead.

    Args:
        base, candidate: name -> the elements of :func:`fingerprint_places`, of tensors of one shape
            that differ a lot.
    """
    swapped: dict[str, str] = {}
    for name, values in candidate.items():
        size = float(np.linalg.norm(values))
        errors = {
            other_name: float(np.linalg.norm(values - own))
            for other_name, own in base.items()
            if other_name != name and own.shape == values.shape
        }
        if not errors or not size:
            continue
        nearest = min(errors, key=errors.__getitem__)
        if errors[nearest] <= _ROUNDED * size:
            swapped[name] = nearest
    return swapped
