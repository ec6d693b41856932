"""What the difference of two stored tensors looks like: found on a few rows, then on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.tensors import Likeness
from evalguard.core.tensors.noise import NoiseTable, name_noise
from evalguard.core.tensors.precision import PrecisionVote, vote_precision
from evalguard.core.tensors.structure import (
    LARGEST_SEARCHED,
    StructureFault,
    find_factor,
    find_structure,
    find_swapped,
    fingerprint_places,
)
from evalguard.run.tensors.streaming import StoredPair, SummedPair, load_candidate
from evalguard.store.tensor_files.stored import StoredTensor

Array = NDArray[Any]

_SAMPLE = 1 << 13  # elements of a sample: a correlation is known to 0.01 then
# Layout faults move whole rows: two of 64 exchanged already make 25%. Below, roundings and
# fine-tuning are what is there, and the search would cost more than it finds.
_LAYOUT_ERROR = 0.05


def describe_difference(summed: SummedPair, noise: NoiseTable | None) -> Likeness | None:
    """Say what the difference of a pair of one shape looks like; None if like nothing known."""
    base, candidate = _sample_rows(summed.pair)
    if not (np.isfinite(base).all() and np.isfinite(candidate).all()):
        finite = np.isfinite(base) & np.isfinite(candidate)
        base, candidate = np.where(finite, base, 0), np.where(finite, candidate, 0)
    vote = vote_precision(base, candidate)
    if vote is not None and (vote.detail or vote.family == "float32"):
        return _precision(vote)
    fault = find_factor(base, candidate)
    if fault is None and summed.sums.relative_l2 > _LAYOUT_ERROR:
        fault = find_layout_fault(summed.pair)
    if fault is not None:
        return _structure(fault)
    if noise is not None:
        family = name_noise(noise, greatest_absolute=summed.sums.greatest_abs.value)
        return Likeness(kind="noise", name=family) if family else None
    return _precision(vote) if vote is not None else None


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
    return find_structure(base, candidate)


def describe_layout_fault(pair: StoredPair) -> Likeness | None:
    """Say which fault of layout makes a pair of two shapes, None if none does."""
    fault = find_layout_fault(pair)
    return None if fault is None else _structure(fault)


def _precision(vote: PrecisionVote) -> Likeness:
    detail = vote.detail
    if vote.rounded == "base":
        detail = f"the base is{': ' if detail else ''}{detail}"
    name = "float32 rounding" if vote.family == "float32" else vote.family
    known = bool(vote.detail) or vote.family == "float32"
    return Likeness(kind="precision" if known else "level", name=name, detail=detail)


def _structure(fault: StructureFault) -> Likeness:
    return Likeness(
        kind="structure", name=fault.fault, detail=fault.detail, rule=fault.rule, left=fault.left
    )


def _sample_rows(pair: StoredPair) -> tuple[Array, Array]:
    """Return some whole rows of both sides, as matrices; small tensors whole."""
    columns = pair.base.shape[-1] if pair.base.shape else 1
    if not pair.lies_alike:
        base, candidate = pair.base.load(), load_candidate(pair)
        rows = _choose_rows(base.size // max(columns, 1), columns)
        return tuple(  # type: ignore[return-value]
            one.reshape(-1, columns)[rows].astype(np.float32) for one in (base, candidate)
        )
    return _read_rows(pair.base, columns), _read_rows(pair.candidate, columns)


def _read_rows(tensor: StoredTensor, columns: int) -> Array:
    if columns % tensor.codec.block:  # rows do not begin with blocks
        return tensor.read().reshape(-1, columns).astype(np.float32)
    rows = _choose_rows(tensor.elements // columns, columns)
    if len(rows) == tensor.elements // columns:
        return tensor.read().reshape(-1, columns).astype(np.float32)
    found = [tensor.read(row * columns, (row + 1) * columns) for row in rows.tolist()]
    return np.stack(found).astype(np.float32)


def _choose_rows(count: int, columns: int) -> NDArray[np.intp]:
    wanted = min(count, max(2, _SAMPLE // max(columns, 1)))
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.intp))


def find_exchanged(pairs: Sequence[StoredPair]) -> dict[str, str]:
    """Return name -> the base's name whose values stand under it in the candidate."""
    sides: list[dict[str, Array]] = [{}, {}]
    for pair in pairs:
        if not pair.lies_alike or pair.base.shape != pair.candidate.shape:
            continue
        for found, tensor in zip(sides, (pair.base, pair.candidate), strict=True):
            found[pair.name] = _fingerprint(tensor)
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
    found = []
    for place in fingerprint_places(tensor.elements).tolist():
        start = place // block * block
        found.append(float(tensor.read(start, start + block)[place - start]))
    return np.array(found)
