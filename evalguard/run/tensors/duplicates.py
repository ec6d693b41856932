"""Tensors of one side that hold the same bytes under different names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from evalguard.core.reports.tensors_report import DuplicateTensors
from evalguard.core.tensors.name_map import NameAlignment
from evalguard.errors import EvaluationError
from evalguard.run.tensors.streaming import forget_bytes
from evalguard.store.tensor_files.stored import StoredTensor

_HEAD = 256  # elements by which most tensors are told apart
_PIECE = 1 << 20


def find_duplicates(
    tensors: Mapping[str, StoredTensor], side: Literal["base", "candidate"]
) -> tuple[DuplicateTensors, ...]:
    """Return groups of tensors that are the same, in the order of the file.

    Tensors of one value (norm weights of 1, biases of 0) say nothing and are left out.
    """
    alike: dict[tuple[object, ...], list[StoredTensor]] = {}
    shapes: dict[tuple[object, ...], int] = {}
    readable = [one for one in tensors.values() if not one.fault and one.elements]
    for one in readable:
        shapes[one.dtype, one.shape] = shapes.get((one.dtype, one.shape), 0) + 1
    for one in readable:
        if shapes[one.dtype, one.shape] > 1:
            try:
                alike.setdefault((one.dtype, one.shape, _head(one)), []).append(one)
            except EvaluationError:  # its comparison says so
                continue
            finally:
                forget_bytes(one)
    groups = [group for rest in alike.values() if len(rest) > 1 for group in _equal(rest)]
    forget_bytes(*readable)
    return tuple(
        DuplicateTensors(side=side, names=tuple(one.name for one in group)) for group in groups
    )


def _head(tensor: StoredTensor) -> bytes:
    """Bytes from its middle and its end."""
    block = tensor.codec.block
    wide = max(_HEAD // block, 1) * block
    middle = tensor.elements // 2 // block * block
    parts = [
        tensor.read_bytes(middle, min(middle + wide, tensor.elements)),
        tensor.read_bytes(max(tensor.elements - wide, 0) // block * block, tensor.elements),
    ]
    return b"".join(part.tobytes() for part in parts)


def _equal(tensors: Sequence[StoredTensor]) -> list[list[StoredTensor]]:
    """Group tensors of equal middles and ends by all their bytes."""
    groups: list[list[StoredTensor]] = []
    for one in tensors:
        for group in groups:
            if _same_bytes(group[0], one):
                group.append(one)
                break
        else:
            groups.append([one])
    return [group for group in groups if len(group) > 1 and not _constant(group[0])]


def _same_bytes(one: StoredTensor, other: StoredTensor) -> bool:
    step = _whole_blocks(one)
    for start in range(0, one.elements, step):
        stop = min(start + step, one.elements)
        try:
            if not np.array_equal(one.read_bytes(start, stop), other.read_bytes(start, stop)):
                return False
        except EvaluationError:
            return False
    return True


def _constant(tensor: StoredTensor) -> bool:
    first = tensor.read(0, tensor.codec.block)[0]
    step = _whole_blocks(tensor)
    for start in range(0, tensor.elements, step):
        values = tensor.read(start, min(start + step, tensor.elements))
        if not (values == first).all():
            return False
    return True


def _whole_blocks(tensor: StoredTensor) -> int:
    return max(_PIECE // tensor.codec.block, 1) * tensor.codec.block


def name_tied(alignment: NameAlignment, duplicates: Sequence[DuplicateTensors]) -> dict[str, str]:
    """Return name on one side only -> the tensor with its values that has a partner.

    Tied embeddings are stored once by some writers and twice by others.
    """
    paired = {
        "base": {pair.base for pair in alignment.pairs},
        "candidate": {pair.cand for pair in alignment.pairs},
    }
    alone = {"base": alignment.base_only, "candidate": alignment.cand_only}
    found: dict[str, str] = {}
    for group in duplicates:
        partner = next((name for name in group.names if name in paired[group.side]), None)
        if partner is not None:
            found |= {name: partner for name in group.names if name in alone[group.side]}
    return found
