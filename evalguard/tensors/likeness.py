"""What the difference of two stored tensors looks like: found on a few rows, then on all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.grid import Grid, explain_by_grid, find_grid, find_grid_fault
from evalguard.core.moved_codes import standardise_groups
from evalguard.core.precision_vote import PrecisionVote, vote_precision
from evalguard.core.tensor_edits import (
    LEAST_PRUNED,
    find_constant,
    find_low_rank,
    find_pruned,
    not_finite_text,
)
from evalguard.core.tensor_structure import (
    LARGEST_SEARCHED,
    NOT_FINITE,
    UNKNOWN_DAMAGE,
    ZEROED,
    Fault,
    Likeness,
    StructureFault,
    find_exact,
    find_factor,
    find_structure,
    find_swapped,
    fingerprint_places,
)
from evalguard.models.unloaded_models import may_have_heads
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.block_fit import (
    find_code_fault,
    find_scale_fault,
    fit_blocks,
)
from evalguard.tensors.damaged_rows import (
    RowFault,
    expect_grid,
    expect_rounding,
    name_rows,
    scan_rows,
    shape_rows,
)
from evalguard.tensors.rescaled_weights import ChannelFactors, find_rescaling, name_rescaling
from evalguard.tensors.streamed_sums import StoredPair, SummedPair, load_bounded, load_candidate

Array = NDArray[Any]
_SAMPLE = 1 << 13  # elements of a sample: a correlation is known to 0.01 then
# Layout faults move whole rows: two of 64 exchanged already make 25%. Below, roundings and
# fine-tuning are what is there, and the search would cost more than it finds.
_LAYOUT_ERROR = 0.05
_SMALL = 1 << 20  # elements: rows of less are always looked at
_UNEVEN = 4.0  # times the median of the parts' relative squared errors
# What a candidate's dtype loses of an element: a factor is exact up to it.
_LOST = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float64": 2.0**-22}
# What no order of rows or columns makes.
_NEVER_LAYOUT: tuple[Fault, ...] = ("shifted", "rows zeroed", "not finite")
_MOVED: tuple[Fault, ...] = ("rows duplicated", "rows permuted")
_PIECE = 1 << 22  # elements that are read at a time
_NEIGHBOURS, _FEWEST_ROWS = 1 << 18, 32  # elements of rows beside each other, and rows
_SUMMED = 1e-3  # what sums in float32 lose, relatively
_NEAR, _EQUAL = 16, 1e-5  # elements, and standard deviations of them by which levels differ
_BETTER = 1.2  # times what codes leave: then they have moved with their scales
_MOST = 0.5  # of the rows: then a fault of the whole tensor is looked for first


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a pair's difference looks like.

    Attributes:
        likeness: None: like nothing known.
        others: exact explanations that are as good.
        damage: rows and blocks that are damaged, the most first.
        rescaling: factors by which rows and columns were multiplied before they were quantised.
        sound: whether the stored format explains it all, though elements are beyond its bound: of a
            quantiser that moves errors.
    """

    likeness: Likeness | None = None
    others: tuple[Likeness, ...] = ()
    damage: tuple[RowFault, ...] = ()
    sound: bool = False
    rescaling: ChannelFactors | None = None


def describe_difference(summed: SummedPair, *, beyond: bool) -> Description:
    """Say what the difference of a pair of one shape looks like.

    Exact explanations come first, then the rounding that it is, then what was done to rows and
    blocks, then to the layout, then a difference of low rank. What is not finite is said first, and
    of the others what they look like.

    Args:
        beyond: whether it is more than the tolerance allows.
    """
    broken = _describe_not_finite(summed)
    seen = _describe_values(summed, beyond=beyond)
    if not broken:
        return seen
    otherwise = "" if seen.likeness is None else f"; otherwise {seen.likeness.words}"
    likeness = Likeness(
        kind="structure", name=NOT_FINITE, fault=NOT_FINITE, detail=f"{broken}{otherwise}"
    )
    return replace(seen, likeness=likeness, others=())


def _describe_not_finite(summed: SummedPair) -> str:
    """Say how many elements are NaN or infinite that the base's are not, and where the first of
    them is; "" where there are none."""
    pair = summed.pair
    if not summed.sums.candidate.broken:
        return ""
    nans = infs = 0
    first = -1
    for start, base, candidate in _read_pieces(pair):
        nan = np.isnan(candidate) & ~np.isnan(base)
        inf = np.isinf(candidate) & (candidate != base)
        nans, infs = nans + int(nan.sum()), infs + int(inf.sum())
        if first < 0 and (nan | inf).any():
            first = start + int((nan | inf).argmax())
    if not nans + infs:
        return ""
    index = np.unravel_index(first, pair.base.shape) if pair.base.shape else ()
    return not_finite_text(nans, infs, pair.elements, [int(at) for at in index])


def _read_pieces(pair: StoredPair) -> Iterator[tuple[int, Array, Array]]:
    """Yield the index of a piece's first element, and the piece of both sides, flat."""
    if not pair.lies_alike:
        yield 0, pair.base.load().reshape(-1), load_candidate(pair).reshape(-1)
        return
    blocks = (pair.base.codec.block, pair.candidate.codec.block)
    size = max(_PIECE // math.lcm(*blocks), 1) * math.lcm(*blocks)
    for start in range(0, pair.elements, size):
        stop = min(start + size, pair.elements)
        yield start, pair.base.read(start, stop), pair.candidate.read(start, stop)


def _describe_values(summed: SummedPair, *, beyond: bool) -> Description:
    pair, sums = summed.pair, summed.sums
    if beyond and sums.candidate.zeros == sums.elements:
        return Description(likeness=_structure(ZEROED))
    base, candidate = _sample_rows(pair)
    exact = _find_exact(summed, base, candidate)
    # a cast of equal elements adds a constant to them as exactly
    if exact and (beyond or vote_precision(base, candidate) is None):
        return Description(likeness=exact[0], others=tuple(exact[1:]))
    edit = _find_edit(summed) if beyond or sums.beyond else None
    if edit is not None:
        return Description(likeness=_structure(edit))
    whole = base, candidate
    base, candidate = _usual_rows(base, candidate)
    vote = vote_precision(base, candidate)
    rounding = None if vote is None else _precision(vote)
    if pair.is_bounded:
        rounding = rounding or name_format(pair)
        if not sums.beyond and not beyond:
            return Description(likeness=rounding)
        wrong = find_scale_fault(pair) if sums.beyond else None
        if wrong is not None:
            detail = f"{wrong.detail}, otherwise {name_format(pair).words}"
            return Description(likeness=_structure(replace(wrong, detail=detail)))
        if pair.candidate.parts and sums.beyond:
            packed = _describe_packed(pair, rounding, beyond=beyond)
            if packed is not None:
                return packed
    off = None
    if rounding is None and vote is None:
        off = _find_grid_fault(pair, *whole) or find_grid_fault(base, candidate)
    grid = None if rounding is not None or off is not None else explain_by_grid(base, candidate)
    if grid is not None:
        rounding = _grid_likeness(grid)
    fault = find_factor(base, candidate) if rounding is None else None
    fault = fault or off
    if fault is not None:
        return Description(likeness=_structure(fault))
    damage: tuple[RowFault, ...] = ()
    if pair.is_bounded or (beyond and _is_uneven(summed)):
        expected = None if grid is None else expect_grid(grid)
        if vote is not None and vote.way is not None and vote.rounded == "candidate":
            expected = expect_rounding(vote.way)
        damage = scan_rows(pair, expected)
    if vote is None and pair.is_bounded and not damage:
        rounding = None  # what it is stored in explains nothing that its format cannot do
    return _conclude(summed, rounding, damage)


def _describe_packed(
    pair: StoredPair, rounding: Likeness | None, *, beyond: bool
) -> Description | None:
    """Say what is wrong with blocks of a packed candidate, or that nothing is; None where they
    are off in another way."""
    fit = fit_blocks(pair)
    if fit is None:
        return None
    factors = find_rescaling(pair) if fit.moves_errors else None
    if factors is not None:
        undone = fit_blocks(pair, rows=factors.rows, columns=factors.columns)
        faults = None if undone is None else undone.find_faults()
        if faults is not None:
            seen: Likeness | None = name_rescaling(factors)
            if faults:
                seen = _rows_likeness(faults, seen)
            return Description(likeness=seen, damage=faults, rescaling=factors)
    named: tuple[RowFault, ...] = ()
    if fit.rows == pair.base.shape[0]:
        named = name_rows(pair, fit.whole_rows)
    faults = fit.find_faults(named=named)
    if faults and not fit.moves_errors and faults[0].fault in UNKNOWN_DAMAGE:
        # what a rounding to nearest explains of each element says more than its blocks do
        faults = scan_rows(pair) or faults
    if faults:
        return Description(likeness=_rows_likeness(faults, rounding), damage=faults)
    if faults is not None and not beyond:
        return Description(likeness=rounding, sound=True)
    return None


def _conclude(
    summed: SummedPair,
    rounding: Likeness | None,
    damage: tuple[RowFault, ...],
) -> Description:
    """Choose between what was done to rows, to the layout, and a rounding."""
    shape = shape_rows(summed.pair.base.shape)
    rows = shape[0] if shape else 1
    share = sum(len(row_fault.rows) for row_fault in damage) / rows
    large = summed.sums.relative_l2 > _LAYOUT_ERROR or shape is None  # of a vector all is cheap
    most = share > _MOST and damage[0].fault not in _NEVER_LAYOUT
    unknown = bool(damage) and damage[0].fault in UNKNOWN_DAMAGE
    # rows that stand out by having moved: so may all others have, of which fewer are far off
    moved = rounding is None and bool(damage) and damage[0].fault in _MOVED
    if large and (most or unknown or moved or (not damage and rounding is None)):
        fault = find_layout_fault(summed.pair)
        if fault is not None and not (moved and not most and fault.fault == damage[0].fault):
            return Description(likeness=_structure(fault))
    if unknown or (not damage and (rounding is None or summed.pair.is_bounded)):
        added = _find_low_rank(summed.pair)
        if added is not None:
            return Description(likeness=_structure(added))
    if unknown and share > 0.9:
        # all of them, in no way that is known: that says nothing about rows
        if summed.pair.is_bounded:
            return Description()
        damage = ()
    if damage:
        return Description(likeness=_rows_likeness(damage, rounding), damage=damage)
    return Description(likeness=rounding)


def _rows_likeness(damage: Sequence[RowFault], rounding: Likeness | None) -> Likeness | None:
    if all(fault.fault == NOT_FINITE for fault in damage):
        return rounding
    first, *rest = (fault for fault in damage if fault.fault != NOT_FINITE)
    details = [f"{fault.fault}: {fault.detail}" for fault in rest[:2]]
    details += [f"otherwise {rounding.words}"] if rounding is not None else []
    return Likeness(
        kind="structure",
        name=first.fault,
        fault=first.fault,
        detail="; ".join([first.detail, *details]),
    )


def _find_edit(summed: SummedPair) -> StructureFault | None:
    """Say that the candidate is constant or pruned, where its sums do not rule it out; of a
    quantised one only that it was pruned before."""
    pair, sums = summed.pair, summed.sums
    side = sums.candidate
    alike = abs(side.total**2 - sums.elements * side.squares) <= _SUMMED * side.total**2
    zeros = side.zeros - sums.base.zeros
    if sums.base.broken or side.broken or pair.elements > LARGEST_SEARCHED:
        return None
    pruned = zeros / sums.elements >= LEAST_PRUNED
    if not pruned and (pair.is_bounded or not alike):
        return None
    base, (candidate, allowed) = pair.base.load(), load_bounded(pair)
    base, candidate = (array.astype(np.float32, copy=False) for array in (base, candidate))
    if allowed is None:
        return find_constant(base, candidate) or find_pruned(base, candidate)
    pruning = find_pruned(base, candidate, 2 * allowed) if sums.beyond else None
    if pruning is None:
        return None
    return replace(pruning, detail=f"{pruning.detail}, otherwise {name_format(pair).words}")


def _find_low_rank(pair: StoredPair) -> StructureFault | None:
    if pair.elements > LARGEST_SEARCHED or len(pair.base.shape) < 2:
        return None
    base = pair.base.load().astype(np.float32)
    candidate, allowed = load_bounded(pair)
    candidate = candidate.astype(np.float32)
    if not (np.isfinite(base).all() and np.isfinite(candidate).all()):
        return None
    return find_low_rank(base, candidate, allowed)


def _find_exact(summed: SummedPair, base: Array, candidate: Array) -> list[Likeness]:
    """Return exact explanations of a sample that hold for the sums of the whole tensor too."""
    pair, sums = summed.pair, summed.sums
    if pair.is_bounded or sums.base.broken or sums.candidate.broken:
        return []
    lost = _LOST.get(pair.candidate.dtype, 2.0**-21)
    exact = []
    for fault in find_exact(base, candidate, lost):
        assert fault.by is not None
        squares = sums.base.squares * (fault.by - 1) ** 2
        if fault.fault == "plus a constant":
            squares = sums.elements * fault.by**2
        if abs(sums.noise - squares) <= max(1e-3, 8 * lost) * squares:
            exact.append(_structure(fault))
    return exact


def _find_grid_fault(pair: StoredPair, base: Array, candidate: Array) -> StructureFault | None:
    """Say what is wrong with the grid on which a sample of the candidate lies, by rows that are
    neighbours: one may have the scale of another."""
    if find_grid(candidate) is None:
        return None
    columns = base.shape[1]
    if not pair.lies_alike or columns % math.lcm(pair.base.codec.block, pair.candidate.codec.block):
        return find_grid_fault(base, candidate)
    rows = min(max(_NEIGHBOURS // columns, _FEWEST_ROWS), pair.elements // columns)
    sides = (tensor.read(0, rows * columns) for tensor in (pair.base, pair.candidate))
    return find_grid_fault(*(side.reshape(rows, columns) for side in sides))


def _usual_rows(base: Array, candidate: Array) -> tuple[Array, Array]:
    """Return a sample without rows that are far off and without what is not finite."""
    finite = np.isfinite(base) & np.isfinite(candidate)
    base, candidate = np.where(finite, base, 0), np.where(finite, candidate, 0)
    with np.errstate(all="ignore"):
        relative = ((candidate - base) ** 2).sum(axis=1) / (base**2).sum(axis=1)
    known = relative[np.isfinite(relative)]
    if not known.size:  # a base of zeros
        return base, candidate
    usual = finite.all(axis=1) & (relative <= 4 * np.median(known))
    if 0 < usual.sum() < len(base):
        return base[usual], candidate[usual]
    return base, candidate


def _is_uneven(summed: SummedPair) -> bool:
    """Whether some part of a tensor may be farther off than the rest."""
    sums = summed.sums
    if sums.elements <= _SMALL or sums.relative_l2 > _LAYOUT_ERROR:
        return True
    with np.errstate(all="ignore"):
        noise, squares = np.array(sums.chunks).T
        relative = noise / squares
    relative = np.where(np.isfinite(relative), relative, np.inf)
    parts = sums.elements >> 15
    return bool(len(relative) < 0.9 * parts or relative.max() > _UNEVEN * np.median(relative))


_BITS = {
    "q8": "int8", "q6": "int6", "q5": "int5", "q4": "int4", "iq4": "int4", "mxfp4": "fp4",
    "nvfp4": "fp4", "q3": "int3", "iq3": "int3",
}  # fmt: skip


def name_format(pair: StoredPair) -> Likeness:
    """Name the precision that a quantised side is stored in."""
    quantised = pair.candidate if pair.candidate.codec.quantised else pair.base
    dtype = quantised.dtype
    name = _BITS.get(dtype.partition("_")[0], dtype)
    detail = f"{dtype}, as it is stored" if name != dtype else "as it is stored"
    if quantised is pair.base:
        detail = f"the base is: {detail}"
    return Likeness(kind="precision", name=name, detail=detail)


def find_layout_fault(pair: StoredPair) -> StructureFault | None:
    """Search whole tensors, also of other shapes; those of over 32 million elements are not."""
    if pair.elements > LARGEST_SEARCHED or pair.candidate.elements > LARGEST_SEARCHED:
        return None
    base = pair.base.load().astype(np.float32)
    try:
        candidate = load_candidate(pair).astype(np.float32)
    except ValueError:  # the layout is what does not fit
        return None
    if not (np.isfinite(base).all() and np.isfinite(candidate).all()):
        return None
    heads, rounding = may_have_heads(pair.name), _measure_levels(pair, candidate)
    fault = find_structure(base, candidate, heads=heads, rounding=rounding)
    if not pair.candidate.codec.quantised or pair.base.codec.quantised:
        return fault
    if pair.lies_alike and pair.base.shape != pair.candidate.shape:
        return fault
    codes = find_code_fault(pair, heads=heads, rounding=rounding)
    if codes is None or (fault is not None and fault.left <= _BETTER * codes.left):
        return fault
    return replace(codes, detail=f"{codes.detail}, otherwise {name_format(pair).words}")


def _measure_levels(pair: StoredPair, candidate: Array) -> float:
    """Return the relative L2 error that rounding to the levels of a packed candidate leaves: by the
    least step of neighbours, which are what has one scale in every format; 0 of others."""
    if not pair.candidate.codec.quantised or candidate.size % _NEAR:
        return 0.0
    laid, _ = standardise_groups(candidate.reshape(1, -1), _NEAR)
    steps = np.diff(np.sort(laid.reshape(-1, _NEAR), axis=1), axis=1)
    least = np.where(steps > _EQUAL, steps, np.inf).min(axis=1)
    known = least[np.isfinite(least)]
    return float(np.median(known)) / math.sqrt(12) if known.size else 0.0


def describe_layout_fault(pair: StoredPair) -> Likeness | None:
    """Say which fault of layout makes a pair of two shapes, None if none does."""
    fault = find_layout_fault(pair)
    return None if fault is None else _structure(fault)


def _precision(vote: PrecisionVote) -> Likeness:
    detail = vote.detail
    if vote.rounded == "base":
        detail = f"the base is{': ' if detail else ''}{detail}"
    name = "float32 rounding" if vote.family == "float32" else vote.family
    return Likeness(kind="precision", name=name, detail=detail)


def _grid_likeness(grid: Grid) -> Likeness:
    parts = [grid.sharing, "" if grid.even or not grid.sharing else "uneven levels"]
    parts += ["not to nearest" if grid.even and not grid.nearest else ""]
    return Likeness(kind="precision", name=grid.name, detail=", ".join(filter(None, parts)))


def _structure(fault: StructureFault) -> Likeness:
    return Likeness(
        kind="structure",
        name=fault.fault,
        fault=fault.fault,
        detail=fault.detail,
        rule=fault.rule,
        left=fault.left,
    )


def _sample_rows(pair: StoredPair) -> tuple[Array, Array]:
    """Return some whole rows of both sides, as matrices; small tensors whole."""
    columns = pair.base.shape[-1] if pair.base.shape else 1
    if not pair.lies_alike:
        base, candidate = pair.base.load(), load_candidate(pair)
        rows = _choose_rows(base.size // max(columns, 1), columns)
        return tuple(  # type: ignore[return-value]
            side.reshape(-1, columns)[rows].astype(np.float32) for side in (base, candidate)
        )
    return _read_rows(pair.base, columns), _read_rows(pair.candidate, columns)


def _read_rows(tensor: StoredTensor, columns: int) -> Array:
    if columns % tensor.codec.block:  # rows do not begin with blocks
        return tensor.read().reshape(-1, columns).astype(np.float32)
    rows = _choose_rows(tensor.elements // columns, columns)
    if len(rows) == tensor.elements // columns:
        return tensor.read().reshape(-1, columns).astype(np.float32)
    sampled = [tensor.read(row * columns, (row + 1) * columns) for row in rows.tolist()]
    return np.stack(sampled).astype(np.float32)


def _choose_rows(count: int, columns: int) -> NDArray[np.intp]:
    wanted = min(count, max(2, _SAMPLE // max(columns, 1)))
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.intp))


def find_exchanged(pairs: Sequence[StoredPair]) -> dict[str, str]:
    """Return name -> the base's name whose values stand under it in the candidate."""
    sides: list[dict[str, Array]] = [{}, {}]
    for pair in pairs:
        if not pair.lies_alike or pair.base.shape != pair.candidate.shape:
            continue
        for fingerprints, tensor in zip(sides, (pair.base, pair.candidate), strict=True):
            fingerprints[pair.name] = _fingerprint(tensor)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for pair in pairs:
        if pair.name in sides[0]:
            by_shape.setdefault(pair.base.shape, []).append(pair.name)
    exchanged: dict[str, str] = {}
    for names in by_shape.values():
        if len(names) > 1:
            exchanged |= find_swapped(*({name: side[name] for name in names} for side in sides))
    return exchanged


def _fingerprint(tensor: StoredTensor) -> Array:
    """Return a few elements, spread over the tensor."""
    block = tensor.codec.block
    values = []
    for position in fingerprint_places(tensor.elements).tolist():
        start = position // block * block
        values.append(float(tensor.read(start, start + block)[position - start]))
    return np.array(values)
