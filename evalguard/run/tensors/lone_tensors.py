"""Tensors of one side alone: lacking on the other, or parts and buffers that nobody lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from evalguard.core.reports.tensors_report import TensorDelta
from evalguard.core.tensors.name_map import NameAlignment
from evalguard.core.tensors.untrained import is_untrained_buffer
from evalguard.store.tensor_files import TensorFiles

_MOST = 3  # parts that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOtherwise:
    """A weight that one side has, and the other in parts of other names.

    Attributes:
        of_base: whether the base is the other.
        fault: why it cannot be read.
    """

    name: str
    of_base: bool
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneTensors:
    """Names of one side alone.

    Attributes:
        base, candidate: which the other side lacks.
        parts: beside weights that cannot be read. buffers: in which nothing was trained.
    """

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    parts: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of those that are not missed, sentences without a full stop."""
        if not self.buffers:
            return ()
        count = f"{len(self.buffers):,} buffer{'s' if len(self.buffers) > 1 else ''}"
        return (
            f"{count} of one side alone, in which nothing was trained: {self.buffers[0]} first",
        )


def find_stored_otherwise(
    base: TensorFiles, candidate: TensorFiles, alignment: NameAlignment
) -> list[StoredOtherwise]:
    """Return the weights that one side lacks while it has tensors under their module that the other
    lacks: parts of a packing that is not known."""
    sides = (
        (alignment.base_only, alignment.cand_only, candidate, False),
        (alignment.cand_only, alignment.base_only, base, True),
    )
    return [
        StoredOtherwise(name=name, of_base=of_base, fault=_fault(other, of_base, parts))
        for here, there, other, of_base in sides
        for name, parts in _find_parts_of(here, there)
    ]


def _find_parts_of(here: Sequence[str], there: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    inside: dict[str, list[str]] = defaultdict(list)
    for one in there:
        for module in () if one.endswith((".weight", ".bias")) else _modules(one):
            inside[module].append(one)
    for name in here:
        parts = inside.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if parts:
            yield name, parts


def _fault(side: TensorFiles, of_base: bool, parts: Sequence[str]) -> str:
    shown = f"{', '.join(parts[:_MOST])}{' ...' if len(parts) > _MOST else ''}"
    return (
        f"{'base' if of_base else 'candidate'}, {side.tensors[parts[0]].file}: in its place stand "
        f"{shown}, packed in a way that evalguard does not know"
    )


def sort_lone(
    base: TensorFiles,
    candidate: TensorFiles,
    alignment: NameAlignment,
    unread: Sequence[TensorDelta],
    known: Collection[str],
) -> LoneTensors:
    """Return the names of one side alone by why they are.

    Args:
        unread: weights that cannot be read; what stands beside them are their parts.
        known: names that have a delta of their own.
    """
    only = (alignment.base_only, alignment.cand_only)
    parts = (
        _beside(only[0], [delta.name for delta in unread]),
        _beside(only[1], [delta.candidate_name for delta in unread]),
    )
    buffers = [
        [name for name in names if is_untrained_buffer(name, side.tensors[name].shape)]
        for side, names in zip((base, candidate), only, strict=True)
    ]
    of_base, of_candidate = (  # which nobody lacks
        {*known, *inside, *untrained} for inside, untrained in zip(parts, buffers, strict=True)
    )
    return LoneTensors(
        base=tuple(name for name in only[0] if name not in of_base),
        candidate=tuple(name for name in only[1] if name not in of_candidate),
        parts=tuple(name for one in parts for name in one if name not in known),
        buffers=tuple(name for one in buffers for name in one),
    )


def _beside(names: Sequence[str], weights: Sequence[str]) -> list[str]:
    """Return the names inside the modules of some weights."""
    wanted = {name.removesuffix(".weight") for name in weights}
    return [name for name in names if not wanted.isdisjoint(_modules(name))]


def _modules(name: str) -> Iterator[str]:
    """Yield the modules that a tensor is in, from the outermost: "a" and "a.b" of "a.b.c"."""
    return (name[:at] for at, letter in enumerate(name) if letter == ".")
