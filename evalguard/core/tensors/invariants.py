"""Invariants by name: what has to hold of two sets of tensors whatever their values are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import InvariantResult, InvariantTensor, TensorDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """Attributes:
    words: what it demands, for people.
    count: the elements of a tensor that break it; None: the tensor is none of its business.
    of_training: whether it is about what was trained, and leaves out rows that were not.
    """

    words: str
    count: Callable[[TensorDelta], int | None]
    of_training: bool = False


def _count_unchanged(delta: TensorDelta) -> int | None:
    """Elements of the task vector (candidate - base) that are zero.

    mergekit's mask of sign consensus is ``sign(delta) == majority``, and the majority of one task
    vector is its own sign, or +1 where that is 0: the mask is false exactly where an element was
    not changed. A difference of two unequal numbers is never rounded to zero, so unequal elements
    count the same in every precision in which the merge may compute it.
    """
    if delta.base.dtype in _WHOLE:
        return None
    return delta.elements - delta.unequal


def _count_false(delta: TensorDelta) -> int | None:
    return delta.candidate.zeros if delta.candidate.dtype == "bool" else None


def _count_not_finite(delta: TensorDelta) -> int | None:
    return delta.candidate.nans + delta.candidate.infs


_WHOLE = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)

INVARIANTS: Mapping[str, Invariant] = {
    "sign-consensus": Invariant(
        words="the sign mask of one task vector (candidate - base) is true wherever anything was "
        "trained",
        count=_count_unchanged,
        of_training=True,
    ),
    "mask-all-true": Invariant(
        words="every element of the candidate's masks (tensors of bool) is true",
        count=_count_false,
    ),
    "finite": Invariant(
        words="the candidate holds no NaN and no infinite element", count=_count_not_finite
    ),
}


def check_invariant(name: str, deltas: Iterable[TensorDelta]) -> InvariantResult:
    """Check an invariant on all pairs that were read."""
    invariant, readable = INVARIANTS[name], list(deltas)
    # Of a candidate that is the base, nothing tells what was trained: there is no task vector.
    leaves_out = invariant.of_training and any(delta.unequal for delta in readable)
    tensors = []
    for delta in readable:
        count, untrained = invariant.count(delta), delta.untrained if leaves_out else 0
        if count is not None:
            checked = InvariantTensor(
                name=delta.name,
                elements=delta.elements - untrained,
                violations=count - untrained,
                untrained=untrained,
            )
            tensors.append(checked)
    return InvariantResult(name=name, words=invariant.words, tensors=tuple(tensors))
