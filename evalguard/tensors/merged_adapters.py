"""Merges of an adapter: how many times its update the merged weights hold, and why.

A tolerance may be wider than an update, so that a merge that did nothing is within it. What tells
is how far the weights moved along the update: sum(change * update) / sum(update^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.precision_vote import BFLOAT16_BITS, round_float16, round_mantissa
from evalguard.core.tensor_structure import Fault, Likeness
from evalguard.errors import EvaluationError
from evalguard.tensor_files.lora_adapters import FoldedRows, Scaling, scale_update
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.streamed_sums import StoredPair, forget_bytes
from evalguard.tensors.tensors_report import TensorDelta

Array = NDArray[Any]
_SAMPLE = 1 << 20  # elements of whole rows, spread over the weight
_STRETCHES = 16
_FEWEST = 32  # elements that an update has to move
_SURE, _LEAST = 6.0, 0.02  # standard errors, and share of the update, that a factor has to be off
_LIKE = 0.015  # how near a factor has to be to one that has a reason
_REST = 0.05  # of the update, that a factor may leave unexplained
_LEAST_PACKED = 0.1  # a quantiser's errors are not all independent of the weights
_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "bfloat16": partial(round_mantissa, bits=BFLOAT16_BITS),
    "float16": round_float16,
    "float32": lambda values: values.astype(np.float32),
}
_STEPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-23}
_NAME: Fault = "adapter scaled"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCheck:
    """What merges of an adapter hold.

    Attributes:
        deltas: of the weights that hold another multiple of the update.
        notes: what is to be said of the adapter, sentences without a full stop.
    """

    deltas: Mapping[str, TensorDelta]
    notes: tuple[str, ...]


def check_merges(pairs: Sequence[StoredPair], deltas: Mapping[str, TensorDelta]) -> MergeCheck:
    """Compare merged weights with what an adapter makes of its base, along its update."""
    changed: dict[str, TensorDelta] = {}
    updates = idle = lost = 0
    for pair in pairs:
        sides = [_folded(pair.base), _folded(pair.candidate)]
        folded = sides[0] or sides[1]
        if folded is None or deltas[pair.name].state in ("unreadable", "shape"):
            continue
        updates += 1
        try:
            if not folded.update.most():
                idle += 1
                continue
            merged = pair.candidate if sides[0] is not None else pair.base
            if None not in sides or not pair.lies_alike or merged.shape != pair.base.shape:
                continue
            factor = _measure(merged, folded)
        except EvaluationError:  # changed while it was read: its comparison says so
            continue
        finally:
            forget_bytes(pair.base, pair.candidate)
        lost += factor is None
        delta = deltas[pair.name]
        known = delta.state == "beyond" and delta.likeness is not None
        if factor is not None and not factor.holds and (factor.exact or not known):
            detail = _explain(factor, folded.update.scaling)
            seen = Likeness(kind="structure", name=_NAME, fault=_NAME, detail=detail)
            changed[pair.name] = replace(delta, state="beyond", damage=(), likeness=seen)
    weights = f"{updates:,} weight{'s' if updates > 1 else ''}"
    notes = []
    if updates and idle == updates:
        notes.append(f"the adapter changes nothing: its update is zero in all of {weights}")
    elif updates and lost == updates:
        notes.append(
            f"the adapter changes nothing once it is merged: in all of {weights} its update is "
            "below half a step of the dtype"
        )
    return MergeCheck(deltas=changed, notes=tuple(notes))


def _folded(tensor: StoredTensor) -> FoldedRows | None:
    return tensor.source if isinstance(tensor.source, FoldedRows) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """How many times its update a merge holds.

    Attributes:
        value: the estimate; ``error``: its standard error.
        holds: whether it is once.
        exact: whether nothing else was done to the weights.
    """

    value: float
    error: float
    holds: bool
    exact: bool


_UNKNOWN = _Factor(value=1.0, error=math.inf, holds=True, exact=False)


def _keep(values: Array) -> Array:
    return values


def _measure(merged: StoredTensor, folded: FoldedRows) -> _Factor | None:
    """Return the factor; None where the merged dtype keeps nothing of the update."""
    parts = list(_read_rows(merged, folded))
    if not parts:
        return _UNKNOWN
    held, weight, update = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    rounded = _ROUNDINGS.get(merged.dtype, _keep)
    expected = rounded(weight + update).astype(np.float64) - weight
    change = held - weight
    if not np.isfinite(change).all():  # its comparison says so
        return _UNKNOWN
    if np.count_nonzero(expected) < _FEWEST:
        return None
    times, error = _project(change, expected)
    least = _LEAST if merged.dtype in _ROUNDINGS else _LEAST_PACKED
    holds = abs(times - 1.0) <= max(least, _SURE * error)
    value, error = _project(change, update)
    rest = held - rounded(weight + value * update)
    size = max(abs(value), 1.0) * _rms(update)
    allowed = _REST * size + _STEPS.get(merged.dtype, math.inf) * _rms(weight)
    return _Factor(value=value, error=error, holds=holds, exact=_rms(rest) <= allowed)


def _read_rows(merged: StoredTensor, folded: FoldedRows) -> Iterator[tuple[Array, Array, Array]]:
    """Yield merged weights, those of the base and the update, in stretches of whole rows."""
    rows, columns = merged.shape
    if columns % merged.codec.block or columns % folded.weight.codec.block:
        return
    wanted = min(rows, max(_SAMPLE // columns, 1))
    length = -(-wanted // min(_STRETCHES, wanted))
    for start in np.linspace(0, rows - length, -(-wanted // length)).astype(int).tolist():
        span = (start * columns, (start + length) * columns)
        held, weight = (tensor.read(*span).astype(np.float64) for tensor in (merged, folded.weight))
        yield held, weight, folded.update.rows(start, start + length).reshape(-1)


def _project(change: Array, along: Array) -> tuple[float, float]:
    """Return the factor of ``along`` in ``change``, and its standard error."""
    power = float(along @ along)
    factor = float(change @ along) / power
    return factor, _rms(change - factor * along) / math.sqrt(power)


def _rms(values: Array) -> float:
    return math.sqrt(float(values @ values) / values.size)


def _explain(factor: _Factor, scaling: Scaling) -> str:
    near = max(_LIKE, 2.0 * factor.error)
    reasons = [
        (value, why)
        for value, why in _list_reasons(scaling)
        if abs(factor.value - value) <= near * max(abs(value), 1.0) and abs(value - 1.0) > near
    ]
    if not factor.exact:
        return f"by about {factor.value:.2g}, and other things were changed"
    if not reasons:
        return f"by {factor.value:.3g}"
    return f"by {reasons[0][0]:.4g}: {' or '.join(dict.fromkeys(why for _, why in reasons))}"


def _list_reasons(scaling: Scaling) -> Iterator[tuple[float, str]]:
    """Yield factors of the update that have a reason."""
    rank, alpha, own = scaling.rank, scaling.alpha, scaling.factor
    yield 0.0, "nothing was merged, the weights are the base's"
    yield -1.0, "merged with the opposite sign"
    if not own:
        return
    swapped = scale_update(rank, alpha, rslora=not scaling.rslora) / own
    if scaling.rslora:
        yield swapped, "alpha / r, where its config says alpha / sqrt(r) (rsLoRA)"
    else:
        yield swapped, "alpha / sqrt(r) (rsLoRA), where its config says alpha / r"
    if (rank, alpha) != (scaling.usual_rank, scaling.usual_alpha):
        usual = scale_update(scaling.usual_rank, scaling.usual_alpha, rslora=scaling.rslora)
        yield usual / own, "the patterns of ranks and alphas were not read"
        part = scale_update(rank, scaling.usual_alpha, rslora=scaling.rslora)
        yield part / own, "the pattern of alphas was not read"
        part = scale_update(scaling.usual_rank, alpha, rslora=scaling.rslora)
        yield part / own, "the pattern of ranks was not read"
    yield 2.0, "merged twice"
    yield 1.0 / own, "alpha and the rank were left out"
    yield alpha / own, "alpha was not divided"
    yield own, "scaled twice"
    if alpha:
        yield 1.0 / alpha, "alpha was left out"
