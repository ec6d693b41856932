"""Tensors rescaled by channels or rotated, and what else differs because of that.

Such factors change a weight far beyond its format, and no answer where another tensor takes them
back: the norm before it, or the rows of the weight before it.

W' = W H for an orthogonal H exactly where W' W'^T = W W^T: the lengths of all rows and the angles
between any two. Some dozens of rows prove it, whatever H is: of other weights their angles have
nothing to do with each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensor_structure import UNKNOWN_DAMAGE, Likeness
from evalguard.tensor_files.packed.row_codec import RowBytes
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.streamed_sums import StoredPair
from evalguard.tensors.tensors_report import TensorDelta

Array = NDArray[Any]
_ROUNDS = 4
_LEFT = 0.7  # of what one factor of all leaves: what is left of a difference that these explain
_LEAST = 0.01  # standard deviation of their logarithms; below it a scale was rounded
_TIMES = 2.0  # times what a rounding alone makes of it
_ALIKE, _APART = 0.03, 0.15  # of a factor that takes another back: usually, and in nearly all


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFactors:
    """What the base is multiplied with to look like the candidate.

    Attributes:
        columns: (columns,) factors; rows: (rows,), None where they are all 1.
        rows: (rows,) factors.
    """

    columns: Array
    rows: Array | None

    @property
    def words(self) -> str:
        """Which, and from least to most: "columns by 0.5 to 2.1"."""
        parts = []
        for name, factors in (("columns", self.columns), ("rows", self.rows)):
            if factors is not None and _factor_spread(factors) > _LEAST:
                parts.append(f"{name} by {factors.min():.3g} to {factors.max():.3g}")
        return ", ".join(parts)


def find_channel_factors(base: Array, candidate: Array) -> ChannelFactors | None:
    """Return the factors of rows and columns that explain most of a difference; None if none do.

    Least squares in turn for columns and rows.

    Args:
        base, candidate: (rows, columns), some rows of a weight and of its dequantised one.
    """
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    if min(ours.shape) < 16 or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    rows, columns = np.ones(len(ours)), np.ones(ours.shape[1])
    for _ in range(_ROUNDS):
        columns = _solve(ours * rows[:, None], theirs, axis=0)
        rows = _solve(ours * columns, theirs, axis=1)
        middle = float(np.median(rows))
        if middle <= 0:
            return None
        rows, columns = rows / middle, columns * middle
    if columns.min() <= 0 or rows.min() <= 0:
        return None
    whole = float(np.sum(ours * theirs) / np.sum(ours * ours))  # of clipping
    residual = float(np.sum((theirs - ours * rows[:, None] * columns) ** 2))
    if residual > _LEFT * float(np.sum((theirs - whole * ours) ** 2)):
        return None
    few = _factor_spread(rows) <= 2 * _LEAST
    if few:
        columns = _solve(ours, theirs, axis=0)
    chance = _spread_by_chance(ours * rows[:, None], theirs, columns)
    if _factor_spread(columns) <= max(_LEAST, _TIMES * chance):
        return None  # of rows alone are scales that were exchanged
    return ChannelFactors(columns=columns, rows=None if few else rows)


def solve_rows(base: Array, candidate: Array, columns: Array) -> Array:
    """Return the factor of each row, once its columns are multiplied with theirs."""
    return _solve(base.astype(np.float64) * columns, candidate.astype(np.float64), axis=1)


def take_back(ratio: Array, factors: Array) -> bool:
    """Whether a tensor's ratio to the base's takes factors back, or is they: element by element."""
    if ratio.shape != factors.shape or not np.isfinite(ratio).all() or ratio.min() <= 0:
        return False
    apart = np.abs(np.log(ratio * factors))
    return bool(np.median(apart) < _ALIKE and np.quantile(apart, 0.98) < _APART)


def _solve(ours: Array, theirs: Array, *, axis: int) -> Array:
    squares = np.sum(ours * ours, axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.sum(ours * theirs, axis=axis) / squares
    return np.where(squares > 0, factors, 1.0)


def _spread_by_chance(ours: Array, theirs: Array, columns: Array) -> float:
    """Return how far the factors of columns would be spread by what they leave alone."""
    rest = theirs - ours * columns
    squares = np.sum(ours * ours, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(np.sum((ours * rest) ** 2, axis=0)) / squares / columns
    return float(np.sqrt(np.mean(np.nan_to_num(errors, posinf=0.0) ** 2)))


def _factor_spread(factors: Array) -> float:
    return float(np.std(np.log(np.maximum(factors, 1e-12))))


LEAST_VECTORS, MOST_VECTORS = 32, 64
_MOST_ROTATION_ERROR = 0.5  # of the angles' spread; of other weights 1.4
_MIXED = 0.85  # a coordinate that goes on as one of the base's was moved, not rotated


def is_rotated(base: Array, candidate: Array, off: float) -> bool:
    """Whether vectors of a candidate are those of the base in an orthogonal basis that mixes them.

    Args:
        base, candidate: (vectors, coordinates) of one shape, with at least 32 vectors.
        off: relative error that the candidate's format leaves.
    """
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    if len(ours) < LEAST_VECTORS or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return False
    lengths = [np.sqrt(np.einsum("ij,ij->i", vectors, vectors)) for vectors in (ours, theirs)]
    if any((norms == 0).any() for norms in lengths):
        return False
    if np.quantile(np.abs(np.log(lengths[1] / lengths[0])), 0.9) > 2 * off:
        return False
    angles = []
    for vectors, length in zip((ours, theirs), lengths, strict=True):
        unit = vectors / length[:, None]
        upper = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
        angles.append(upper - upper.mean())
    spread = float(np.linalg.norm(angles[0]))
    apart = float(np.linalg.norm(angles[1] - angles[0]))
    return apart <= min(2 * off, _MOST_ROTATION_ERROR) * spread and _mixes(ours, theirs)


def _mixes(ours: Array, theirs: Array) -> bool:
    """Whether most coordinates of the candidate are like no single one of the base."""
    some = theirs[:, np.linspace(0, theirs.shape[1] - 1, 32).astype(np.intp)]
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.abs(
            (ours / np.linalg.norm(ours, axis=0)).T @ (some / np.linalg.norm(some, axis=0))
        )
    return bool(np.median(np.nan_to_num(alike).max(axis=0)) < _MIXED)


_SAMPLE = 1 << 21  # elements by which factors of columns are known to about 1%
_PIECE = 1 << 20  # elements that are read at a time
_LARGEST = 1 << 24  # elements of a plain tensor that is read whole
_PART = 0.25  # of what a ratio has to explain
_LAYER = re.compile(r"(.*?\.\d+\.)")


def find_rescaling(pair: StoredPair) -> ChannelFactors | None:
    """Return the factors by which a packed candidate's rows and columns were multiplied."""
    if not isinstance(pair.candidate.source, RowBytes) or not pair.lies_alike:
        return None
    if len(pair.base.shape) != 2 or pair.base.codec.quantised:
        return None
    count, columns = pair.base.shape
    factors = find_channel_factors(*_sample(pair))
    if factors is None or factors.rows is None:
        return factors
    height = max(_PIECE // columns, 1)
    rows = [
        solve_rows(
            _read(pair.base, first, min(first + height, count)),
            _read(pair.candidate, first, min(first + height, count)),
            factors.columns,
        )
        for first in range(0, count, height)
    ]
    return ChannelFactors(columns=factors.columns, rows=np.concatenate(rows))


def _sample(pair: StoredPair) -> tuple[Array, Array]:
    """Return some whole rows of both sides."""
    count, columns = pair.base.shape
    places = np.unique(np.linspace(0, count - 1, max(16, _SAMPLE // columns)).astype(np.intp))
    ours, theirs = (
        np.stack([_read_row(side, int(row), columns) for row in places])
        for side in (pair.base, pair.candidate)
    )
    return ours.astype(np.float64), theirs.astype(np.float64)


def _read_row(tensor: Any, row: int, columns: int) -> Array:
    block = tensor.codec.block
    start, stop = row * columns, (row + 1) * columns
    begin, end = start // block * block, -(-stop // block) * block
    values: Array = tensor.read(begin, end)[start - begin : stop - begin]
    return values


def _read(tensor: Any, first: int, stop: int) -> Array:
    columns = tensor.shape[-1]
    values: Array = tensor.read(first * columns, stop * columns).reshape(-1, columns)
    return values


def explain_plain(
    pair: StoredPair,
    delta: TensorDelta,
    rescaled: Mapping[str, ChannelFactors],
    others: Sequence[StoredPair],
) -> Likeness | None:
    """Say whose factors a plain tensor takes back, or shares; None if it does not.

    A norm is divided by the columns' factors of the weights that it comes before, a bias is
    multiplied with those of its weight's rows, a router is rescaled as its neighbours are.

    Args:
        rescaled: name -> factors of the weights that have some.
        others: all pairs, of which those of the same layer are looked at.
    """
    if delta.state != "beyond" or pair.candidate.parts or pair.elements > _LARGEST:
        return None
    matched = _LAYER.match(pair.name)
    layer = matched.group(1) if matched is not None else ""
    near = {name: factors for name, factors in rescaled.items() if name.startswith(layer)}
    if pair.base.shape != pair.candidate.shape or not pair.lies_alike:
        return None
    ours, theirs = (side.load().astype(np.float64) for side in (pair.base, pair.candidate))
    if ours.ndim == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((ours == 0) & (theirs == 0), np.nan, theirs / ours)
        for name, factors in near.items():
            if take_back(ratio, factors.columns):
                return _rescaled_likeness(f"by the inverse of the columns of {name}")
            if factors.rows is not None and take_back(1 / ratio, factors.rows):
                return _rescaled_likeness(f"as the rows of {name}")
        for neighbour in others:
            if neighbour.name.startswith(layer) and _holds_inverse(neighbour, ratio):
                return _rescaled_likeness(f"by the inverse of the columns of {neighbour.name}")
        return None
    own = find_channel_factors(ours, theirs) if ours.ndim == 2 else None
    if own is None or own.rows is not None:
        return None
    for name, factors in near.items():
        if take_back(1 / own.columns, factors.columns):
            return _rescaled_likeness(f"as the columns of {name}")
    return None


def _holds_inverse(pair: StoredPair, ratio: Array) -> bool:
    """Whether a packed weight's columns are divided by a ratio, which its rounding may hide: then
    that explains a part of its error that is as large as it has to be."""
    shape = pair.base.shape
    plain = pair.lies_alike and not pair.base.codec.quantised and shape == pair.candidate.shape
    if not plain or not pair.candidate.parts or len(shape) != 2 or shape[1] != ratio.size:
        return False
    if not np.isfinite(ratio).all() or ratio.min() <= 0:
        return False
    ours, theirs = _sample(pair)
    change = ours * (1 / ratio - 1)
    squares = float(np.sum(change * change))
    part = float(np.sum(change * (theirs - ours))) / squares if squares else 0.0
    return abs(part - 1) < _PART


def name_rescaling(factors: ChannelFactors) -> Likeness:
    """Return what a rescaled weight looks like."""
    return _rescaled_likeness(
        f"{factors.words}, as AWQ and SmoothQuant do; otherwise within its format"
    )


def _rescaled_likeness(detail: str) -> Likeness:
    return Likeness(kind="structure", name="rescaled", fault="rescaled", detail=detail)


_UNLIKE = 0.5  # of the norm: a rotation leaves nothing alike
_LEAST_OFF, _MOST_OFF = 0.01, 0.4


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
    rotated: dict[str, Likeness] = {}
    folded: set[str] = set()
    for pair in unlike:
        side, norm = _find_side(pair, norms)
        if side:
            rotated[pair.name] = _likeness(f"on the side of its {side}")
            folded |= {norm} if norm else set()
    if not rotated:
        return {}
    for name in folded:
        if deltas[name].state == "beyond" and _is_constant(norms[name].candidate):
            rotated[name] = _likeness("its factors went into the weights after it")
    for pair in unlike:
        if pair.name not in rotated and _same_length(pair, norms):
            rotated[pair.name] = _likeness("on both sides, which only its length can tell")
    return rotated


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
    error = tolerance.rtol if tolerance.snr is None else 10 ** (-tolerance.snr / 20)
    return min(max(error, _LEAST_OFF), _MOST_OFF)


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
    matched = _LAYER.match(name)
    return "" if matched is None else matched.group(1)


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
    squares = np.zeros(tensor.shape[1])
    for piece in _read_pieces(tensor):
        squares += np.einsum("ij,ij->j", piece, piece, dtype=np.float64)
    return squares


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
    explanation = f"{detail}; evalguard compare tells whether the model answers alike"
    return Likeness(kind="structure", name="rotated", fault="rotated", detail=explanation)
