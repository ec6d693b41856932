"""Pairs of matrices whose numbers of rows differ: a vocabulary that was padded, or rows that were
put in or taken out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.row_counts import RowCounts, find_row_counts
from evalguard.core.tensor_structure import Likeness
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.damaged_rows import draw_directions
from evalguard.tensors.streamed_sums import StoredPair
from evalguard.tensors.tensor_pairs import is_of_vocabulary
from evalguard.tensors.tensors_report import TensorDelta

Array = NDArray[Any]
_PIECE = 1 << 20  # elements that are read at a time
_LEAST_COLUMNS = 8
# Times the greatest norm of the base's rows: padding is zero, or drawn like the others.
_LARGEST = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedPair:
    """A pair of another number of rows.

    Attributes:
        counts: which rows.
        same: the pair without them, where they are padding of a vocabulary; None: they are not.
        why: that they cannot be padding, though they are at its end.
    """

    counts: RowCounts
    same: StoredPair | None = None
    why: str = ""

    @property
    def likeness(self) -> Likeness:
        """The fault that they are."""
        detail = self.counts.detail + (f"; {self.why}" if self.why else "")
        fault = self.counts.fault
        return Likeness(kind="structure", name=fault, fault=fault, detail=detail)

    def describe(self, delta: TensorDelta, original: TensorDelta) -> TensorDelta:
        """Return the delta of the rows that both have, as one of the whole pair."""
        counts = replace(delta.candidate, shape=original.candidate.shape)
        number = len(self.counts.rows)
        return replace(
            delta,
            state="equal" if delta.state == "identical" else delta.state,
            candidate=counts,
            rows_appended=number,
            layout=f"{number:,} row{'s' if number > 1 else ''} appended",
        )


def find_resized(pair: StoredPair) -> ResizedPair | None:
    """Say which rows of a pair one side has more; None where its shapes differ otherwise.

    Rows at the end of an embedding or an output head are padding of the vocabulary where they are
    finite and no larger than others; the rest is then compared as ever.
    """
    base, candidate = pair.base, pair.candidate
    ours, theirs = base.shape, candidate.shape
    if not pair.lies_alike or not ours or not theirs or ours[0] == theirs[0]:
        return None
    if len(ours) != len(theirs) or ours[1:] != theirs[1:] or 0 in (*ours, *theirs):
        return None
    columns = int(np.prod(ours[1:]))
    vocabulary = is_of_vocabulary(pair.name)
    blocks = (base.codec.block, candidate.codec.block)
    if any(columns % block for block in blocks) or (columns < _LEAST_COLUMNS and not vocabulary):
        return None
    sides = [_read_rows(tensor, columns) for tensor in (base, candidate)]
    counts = find_row_counts(sides[0][0], sides[1][0])
    if counts is None or counts.fault != "rows appended" or not vocabulary:
        return None if counts is None else ResizedPair(counts=counts)
    added, most = sides[1][1][len(sides[0][1]) :], float(sides[0][1].max(initial=0.0))
    if not np.all(np.isfinite(added)):
        return ResizedPair(counts=counts, why="they hold NaN or infinite values")
    if added.max() > _LARGEST * most:
        return ResizedPair(counts=counts, why="they are larger than any of the base's")
    same = replace(pair, candidate=replace(candidate, shape=ours))
    return ResizedPair(counts=counts, same=same)


def _read_rows(tensor: StoredTensor, columns: int) -> tuple[Array, Array]:
    """Return projections of each row, and its norm."""
    directions = draw_directions(columns)
    height = max(1, _PIECE // columns)
    projections, norms = [], []
    for first in range(0, tensor.shape[0], height):
        stop = min(first + height, tensor.shape[0])
        rows = tensor.read(first * columns, stop * columns).reshape(-1, columns)
        with np.errstate(all="ignore"):
            rows = rows.astype(np.float32)
            projections.append(rows @ directions)
            norms.append(np.linalg.norm(rows, axis=1))
    return np.concatenate(projections), np.concatenate(norms)
