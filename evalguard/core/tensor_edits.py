"""Edits of a tensor's values: made constant, pruned, an update of low rank added.

Each is said only where it explains every element, up to what the two sides are stored in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import SEARCHED
from evalguard.core.tensor_structure import StructureFault, stored_precision

Array = NDArray[Any]
_LEAST_CONSTANT = 4  # numbers: fewer are alike by chance
LEAST_PRUNED = 0.02  # of the elements that rows and columns hold which keep some
_UNDERFLOW = 1e-3  # of the base's root mean square: a cast to float16 takes less to zero
_MISPLACED = 0.005  # of the pruned: larger than some that were kept, by ties and roundings
_HALF_STEP = 0.55  # of a step: what a rounding to nearest may leave
_MOVED = 0.01  # of the elements that were kept: off by more than a step, cut off at the ends
_MOST_ROUNDED = 0.5  # of the groups keep what a pattern keeps, where a rounding makes zeros as well
_PATTERNS = (2, 4, 8, 16)  # M of N:M
_LEAST_OF_ROW = 2  # pruned elements, where all rows have the same number
_LOOKED_AT = 512  # rows and columns by which a rank is proposed
_MOST_OF_RANK = 4  # a rank is low up to this part of the shorter side
_FEWEST_TOUCHED = 3  # times the rank: fewer rows or columns are of no higher rank, whatever is done
_SMALLEST_SIDE = 16
_ABOVE = 1.2  # times what roundings do to a singular value
_CLEAR = 2.0  # times the same: of a rank that is told exactly
_ROUNDINGS = 1.5  # times the squares that roundings are expected to leave
_COMPUTED = 2.0**-9  # of an update: what multiplying its factors in bfloat16 loses
_FULL_RANK = 1e-3  # of the largest singular value
_OVERSAMPLED = 16  # directions beyond the rank (Halko, Martinsson and Tropp 2011)


def find_edit(base: Array, candidate: Array) -> StructureFault | None:
    """Say which edit made the candidate of the base, None where none did.

    Args:
        base, candidate: whole tensors of one shape in float32, finite.
    """
    if base.shape != candidate.shape:
        return None
    return (
        find_constant(base, candidate)
        or find_pruned(base, candidate)
        or find_low_rank(base, candidate)
    )


def not_finite_text(nans: int, infs: int, elements: int, first: Sequence[int]) -> str:
    """Return "1 infinite element, at [9, 3]", "3 NaN of 64 elements, the first at [0, 3]"."""
    counts = ((nans, "NaN"), (infs, "infinite"))
    counted = " and ".join(f"{count:,} {what}" for count, what in counts if count)
    position = [int(index) for index in first]
    if nans + infs == 1:
        return f"{counted} element, at {position}"
    return f"{counted} of {elements:,} elements, the first at {position}"


def find_constant(base: Array, candidate: Array) -> StructureFault | None:
    """Say that all elements are one number, which those of the base are not; None where not so.

    All zeros have a class of their own.
    """
    first = candidate.flat[0] if candidate.size else 0.0
    if base.size < _LEAST_CONSTANT or not first or not np.isfinite(first):
        return None
    if not (candidate == first).all() or (base == base.flat[0]).all():
        return None
    return StructureFault(fault="constant", detail=f"all {first:.6g}", left=1.0)


def find_pruned(base: Array, candidate: Array, steps: Array | None = None) -> StructureFault | None:
    """Say which elements were set to zero, the others left as they are; None where no rule of
    pruning chose them: the smallest (of all, of each row or column), N of M neighbours, or as many
    of each row.

    Args:
        base, candidate: whole tensors of one shape, finite.
        steps: how far apart the levels are at each element, where the candidate was rounded as
            well; None: it was not.
    """
    if base.ndim < 2 or base.size == 0:
        return None
    ours, theirs = (matrix.reshape(base.shape[0], -1) for matrix in (base, candidate))
    zeroed = (theirs == 0) & (ours != 0)
    share = float(zeroed.mean())
    if share < LEAST_PRUNED:
        return None
    if steps is None:
        allowed, most_off = stored_precision(candidate) * np.abs(ours), 0.0
    else:
        allowed, most_off = steps.reshape(ours.shape), _MOVED
        zeroed &= np.abs(ours) > _HALF_STEP * allowed  # of the others the rounding made zero
    off = (np.abs(theirs - ours) > allowed) & (theirs != 0)
    if np.count_nonzero(off) > most_off * off.size:
        return None
    rows, columns = theirs.any(axis=1), theirs.any(axis=0)  # what is zero as a whole is no part
    ours, theirs, zeroed = (matrix[rows][:, columns] for matrix in (ours, theirs, zeroed))
    if not zeroed.any() or zeroed.mean() < LEAST_PRUNED:
        return None
    if np.abs(ours[zeroed]).max() <= _UNDERFLOW * float(
        np.sqrt(np.mean(ours.astype(np.float64) ** 2))
    ):
        return None
    rule = _name_rule(np.abs(ours), theirs != 0, zeroed, rounded=steps is not None)
    if not rule:
        return None
    error_left = float(np.linalg.norm(ours[zeroed]) / np.linalg.norm(ours))
    detail = rule if ":" in rule else f"{100 * share:.3g}%{rule}"
    if steps is not None:  # of how many, the rounding hides
        detail = rule.removeprefix(", ")
    return StructureFault(fault="pruned", detail=detail, left=error_left)


def _name_rule(sizes: Array, kept: Array, zeroed: Array, *, rounded: bool) -> str:
    for pattern in _PATTERNS:
        for axis, where in ((1, ""), (0, " along axis 0")):
            fewest = _MOST_ROUNDED if rounded else 1 - _MISPLACED
            most = _count_kept(kept if axis else kept.T, pattern, fewest)
            if most and not (most == 1 and pattern == len(kept.T if axis else kept)):
                return f"{most}:{pattern}{where}"
    ranges: list[tuple[int | None, str]] = [
        (None, ""), (1, " of each row"), (0, " of each column"),
    ]  # fmt: skip
    for over, where in ranges:
        least = np.where(kept, sizes, np.inf).min(axis=over, keepdims=True)
        misplaced = np.count_nonzero(zeroed & (sizes > least))
        if misplaced <= _MISPLACED * np.count_nonzero(zeroed):
            return f", the smallest{where}"
    for axis in () if rounded else (1, 0):
        counts = np.count_nonzero(zeroed, axis=axis)
        if counts.min() >= _LEAST_OF_ROW and np.ptp(counts) == 0 and len(counts) >= _SMALLEST_SIDE:
            return " of each row" if axis else " of each column"
    return ""


def _count_kept(kept: Array, pattern: int, fewest: float) -> int:
    """Return how many of each group of neighbours in a row are kept, in a share of the groups at
    least; 0 where it is no pattern."""
    if kept.shape[1] % pattern or kept.shape[1] < 2 * pattern or kept.size < pattern**2:
        return 0
    counts = np.count_nonzero(kept.reshape(-1, pattern), axis=1)
    most = int(counts.max())
    # elements that were zero before may leave fewer
    regular = most < pattern and np.mean(counts == most) > fewest
    return most if regular else 0


def find_low_rank(
    base: Array, candidate: Array, allowed: Array | None = None
) -> StructureFault | None:
    """Say that the difference is a matrix of low rank, as a merged adapter is, and of which rank.

    All singular values but those of the rank are what roundings leave: the norm of a random matrix
    is at most about the largest norm of a row plus that of a column.

    Args:
        base, candidate: whole tensors of one shape, finite; of three axes a stack, of which each
            matrix has its own.
        allowed: how far a rounding may move each element; None: what the candidate is stored in.
    """
    if base.ndim == 3:
        return _find_in_stack(base, candidate, allowed)
    if base.ndim < 2 or min(base.shape[0], base.size // max(base.shape[0], 1)) < _SMALLEST_SIDE:
        return None
    ours, theirs = (matrix.reshape(base.shape[0], -1) for matrix in (base, candidate))
    bounds = None if allowed is None else allowed.reshape(ours.shape)
    change = theirs.astype(np.float64) - ours
    for error in _list_errors(ours, theirs, bounds):
        rms = math.sqrt(float(np.mean(change**2)))
        variance = error.astype(np.float64) ** 2 / 3 + (_COMPUTED * rms) ** 2 / 3
        rank = _propose_rank(ours, change, variance)
        if rank and _is_spread(change, variance, rank):
            values, error_left = _measure_rank(change, variance, rank)
            if values.size:
                # what is smaller than the smallest of these may be hidden by roundings
                or_more = " or more" if values[-1] < _CLEAR * _edge(variance) else ""
                return StructureFault(
                    fault="low rank",
                    detail=f"rank {values.size}{or_more}",
                    left=error_left / max(float(np.linalg.norm(ours)), 1e-30),
                    by=float(values.size),
                )
    return None


def _find_in_stack(base: Array, candidate: Array, allowed: Array | None) -> StructureFault | None:
    faults = []
    for at, (ours, theirs) in enumerate(zip(base, candidate, strict=True)):
        bounds = None if allowed is None else allowed[at]
        rounded = _list_errors(ours, theirs, bounds)[0]
        if not (np.abs(theirs - ours) <= rounded).all():
            fault = find_low_rank(ours, theirs, bounds)
            if fault is None:
                return None
            faults.append(fault)
    return max(faults, key=lambda fault: fault.by or 0.0, default=None)


def _list_errors(base: Array, candidate: Array, allowed: Array | None) -> list[Array]:
    """What roundings may move each element by: the candidate's, or those of both."""
    if allowed is not None:
        known = allowed[allowed < SEARCHED]
        usual = float(np.median(known)) if known.size else 0.0
        return [np.where(allowed < SEARCHED, allowed, usual)]
    own = stored_precision(candidate) * np.abs(candidate)
    of_base = stored_precision(base) * np.abs(base)
    return [own, np.maximum(own, of_base)]


def _edge(variance: Array) -> float:
    """The largest singular value that roundings of these variances make."""
    return _ABOVE * math.sqrt(variance.sum(axis=0).max()) + _ABOVE * math.sqrt(
        variance.sum(axis=1).max()
    )


def _propose_rank(base: Array, change: Array, variance: Array) -> int:
    """Return the rank of a part of the rows and columns; 0 where it is not low."""
    places = [
        np.unique(np.linspace(0, size - 1, min(size, _LOOKED_AT)).astype(np.intp))
        for size in change.shape
    ]
    part = np.ix_(*places)
    ours, theirs, noise = base[part], change[part], variance[part]
    values = np.linalg.svd(theirs, compute_uv=False)
    rank = int(np.count_nonzero(values > _edge(noise)))
    if not 0 < rank * _MOST_OF_RANK <= min(theirs.shape):
        return 0
    if float(np.sum(values[rank:] ** 2)) > _ROUNDINGS * float(noise.sum()):
        return 0
    own = np.linalg.svd(ours, compute_uv=False)
    # of a base that is of low rank itself, so is much else
    return rank if np.count_nonzero(own > _FULL_RANK * own[0]) >= _MOST_OF_RANK * rank else 0


def _is_spread(change: Array, variance: Array, rank: int) -> bool:
    """Whether so many rows and columns differ that they might be of a higher rank."""
    squares = change**2
    return all(
        np.count_nonzero(squares.sum(axis=axis) > 4 * variance.sum(axis=axis))
        >= _FEWEST_TOUCHED * rank
        for axis in (0, 1)
    )


def _measure_rank(change: Array, variance: Array, proposed: int) -> tuple[Array, float]:
    """Return the singular values of a whole difference that no rounding makes, and the norm of what
    they leave; none where they are not few."""
    size = min(2 * proposed + _OVERSAMPLED, *change.shape)
    rng = np.random.default_rng(0)
    # once more through the matrix: roundings are as wide as they are many
    start, _ = np.linalg.qr(change @ rng.standard_normal((change.shape[1], size)))
    inner, _ = np.linalg.qr(change.T @ start)
    values = np.linalg.svd(change @ inner, compute_uv=False)
    rank = int(np.count_nonzero(values > _edge(variance)))
    remaining = float(np.sum(change**2)) - float(np.sum(values[:rank] ** 2))
    low = 0 < rank * _MOST_OF_RANK <= min(change.shape) and rank < size - 1
    if not low or remaining > _ROUNDINGS * float(variance.sum()):
        return values[:0], 0.0
    return values[:rank], math.sqrt(max(remaining, 0.0))
