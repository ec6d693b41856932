"""Which tensors of a candidate were rotated, and what else differs because of that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.reports.tensors_report import Likeness, TensorDelta
from evalguard.core.tensors.rotation import LEAST_VECTORS, MOST_VECTORS, is_rotated
from evalguard.core.tensors.structure import UNKNOWN_DAMAGE
from evalguard.run.tensors.streaming import StoredPair
from evalguard.store.tensor_files.stored import StoredTensor

Array = NDArray[Any]

_UNLIKE = 0.5  # of the norm: a rotation leaves nothing alike
_LEAST_OFF, _MOST_OFF = 0.01, 0.4
_PIECE = 1 << 20  # elements that are read at a time
_LAYER = re.compile(r"(.*?\.\d+\.)")


def find_rotated(
    pairs: Sequence[StoredPair], deltas: Mapping[str, TensorDelta]
) -> dict[str, Likeness]:
    """Return name -> what rotation explains, of tensors that are beyond their tolerance.

    A weight is proven to be rotated on one side by :func:`is_rotated`; its inputs' side with the
    norm before it folded in, which is 1 then. Where some are, others may be rotated on both sides:
    all that can be told of those is that their lengths agree.
    """
    unlike = [pair for pair in pairs if _is_asked(pair, deltas[pair.name])]
    norms = {pair.name: pair for pair in pairs if len(pair.base.shape) == 1}
    found: dict[str, Likeness] = {}
    folded: set[str] = set()
    for pair in unlike:
        side, norm = _find_side(pair, norms)
        if side:
            found[pair.name] = _likeness(f"on the side of its {side}")
            folded |= {norm} if norm else set()
    if not found:
        return {}
    for name in folded:
        if deltas[name].state == "beyond" and _is_constant(norms[name].candidate):
            found[name] = _likeness("its factors went into the weights after it")
    for pair in unlike:
        if pair.name not in found and _same_length(pair, norms):
            found[pair.name] = _likeness("on both sides, which only its length can tell")
    return found


def _is_asked(pair: StoredPair, delta: TensorDelta) -> bool:
    like = delta.likeness
    named = like is not None and like.kind == "structure" and like.fault not in UNKNOWN_DAMAGE
    return (
        delta.state == "beyond"
        and not named
        and (delta.relative_l2 or 0.0) > _UNLIKE
        and len(pair.base.shape) == 2
        and pair.base.shape == pair.candidate.shape
        and pair.lies_alike
    )


def _find_side(pair: StoredPair, norms: Mapping[str, StoredPair]) -> tuple[str, str]:
    """Return "inputs" or "outputs", and the norm that was folded in; "" where none is proven."""
    rows, columns = pair.base.shape
    off = _format_error(pair)
    if rows >= LEAST_VECTORS:
        places = _spread(rows)
        ours, theirs = (_take_rows(side, places) for side in (pair.base, pair.candidate))
        for name, factors in _factors_before(pair, norms):
            if is_rotated(ours * factors, theirs, off):
                return "inputs", name
    if columns >= LEAST_VECTORS:
        places = _spread(columns)
        ours, theirs = (_take_columns(side, places) for side in (pair.base, pair.candidate))
        if is_rotated(ours.T, theirs.T, off):
            return "outputs", ""
    return "", ""


def _format_error(pair: StoredPair) -> float:
    """Return the relative error that the formats of both sides leave."""
    tolerance = pair.tolerance
    told = tolerance.rtol if tolerance.snr is None else 10 ** (-tolerance.snr / 20)
    return min(max(told, _LEAST_OFF), _MOST_OFF)


def _factors_before(
    pair: StoredPair, norms: Mapping[str, StoredPair]
) -> Iterator[tuple[str, Array | float]]:
    """Yield what may have been multiplied into a weight's columns: nothing, or a norm's weight of
    the same layer; of a weight that is in no layer, a norm's that is in none."""
    yield "", 1.0
    for name, norm in norms.items():
        if _layer(name) == _layer(pair.name) and norm.base.shape == pair.base.shape[1:]:
            weight = norm.base.load().astype(np.float64)
            yield name, weight
            yield name, 1 + weight  # Gemma's


def _layer(name: str) -> str:
    found = _LAYER.match(name)
    return "" if found is None else found.group(1)


def _is_constant(tensor: StoredTensor) -> bool:
    values = tensor.load()
    return bool(np.isin(values, (0, 1)).all() and (values == values.flat[0]).all())


def _same_length(pair: StoredPair, norms: Mapping[str, StoredPair]) -> bool:
    """Whether both sides have the same Frobenius norm, with a norm's weight folded in or not."""
    off = _format_error(pair)
    squares = _column_squares(pair.base)
    theirs = float(_column_squares(pair.candidate).sum())
    return any(
        abs(np.log(theirs / ours)) <= 4 * off
        for _, factors in _factors_before(pair, norms)
        if (ours := float((squares * factors * factors).sum())) > 0 < theirs
    )


def _column_squares(tensor: StoredTensor) -> Array:
    found = np.zeros(tensor.shape[1])
    for piece in _read_pieces(tensor):
        found += np.einsum("ij,ij->j", piece, piece, dtype=np.float64)
    return found


def _spread(count: int) -> Array:
    return np.linspace(0, count - 1, min(count, MOST_VECTORS)).astype(np.intp)


def _take_rows(tensor: StoredTensor, places: Array) -> Array:
    columns, block = tensor.shape[1], tensor.codec.block
    if columns % block:  # rows do not begin with blocks
        return np.concatenate([*_read_pieces(tensor)])[places]
    return np.stack([tensor.read(row * columns, (row + 1) * columns) for row in places.tolist()])


def _take_columns(tensor: StoredTensor, places: Array) -> Array:
    return np.concatenate([piece[:, places] for piece in _read_pieces(tensor)])


def _read_pieces(tensor: StoredTensor) -> Iterable[Array]:
    rows, columns = tensor.shape
    step = rows if columns % tensor.codec.block else max(_PIECE // columns, 1)
    for first in range(0, rows, step):
        stop = min(first + step, rows)
        yield tensor.read(first * columns, stop * columns).reshape(-1, columns)


def _likeness(detail: str) -> Likeness:
    said = f"{detail}; evalguard compare tells whether the model answers alike"
    return Likeness(kind="structure", name="rotated", fault="rotated", detail=said)
