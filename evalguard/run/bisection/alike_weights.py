"""Weights that differ alike, as ``evalguard tensors`` tells it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from evalguard.core.reports.tensors_report import Likeness
from evalguard.core.tensors.structure import UNKNOWN_DAMAGE
from evalguard.errors import EvalguardError
from evalguard.models.checkpoint_files import CheckpointFiles
from evalguard.models.weight_places import WeightPlace
from evalguard.run.bisection.stored_names import StoredNames
from evalguard.run.bisection.weight_cause import WeightCause, build_cause, cut_by_module
from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

# Faults of layout that one mistake makes of several tensors: rows here are columns there.
_REARRANGED = frozenset(
    {"rows permuted", "rows swapped", "columns permuted", "heads permuted", "rotary pairs"}
)
_FEWEST_ROUNDED = 2  # matrices of one rounding


def describe_differences(
    stored: StoredNames,
    base: CheckpointFiles,
    candidate: CheckpointFiles,
    differing: Iterable[str],
) -> dict[str, Likeness]:
    """What the difference of each looks like; those of which nothing is known are left out."""
    folders = [str(files.files[0].parent) for files in (base, candidate)]
    try:
        report = compare_tensors(folders[0], folders[1], TensorOptions(processes=0))
    except EvalguardError:
        return {}  # a form that only loading reads: they are searched without it
    alike = {
        (delta.name, delta.candidate_name): delta.likeness
        for delta in report.deltas
        if delta.likeness is not None
        and delta.likeness.kind in ("structure", "precision")
        and delta.likeness.name not in UNKNOWN_DAMAGE
    }
    found = {
        name: alike.get((stored.base.get(name, ""), stored.candidate.get(name, "")))
        for name in differing
    }
    return {name: one for name, one in found.items() if one is not None}


_MOVED = 0.05  # of a bias's difference: what is left of it once its elements are put in order


def find_moved_biases(
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    differing: Iterable[str],
    likenesses: Mapping[str, Likeness],
    matrices: Collection[str],
) -> dict[str, Likeness]:
    """Find vectors whose elements moved as the rows of the matrix in their module did."""
    rows = {
        places[name].module: likeness
        for name, likeness in likenesses.items()
        if name in matrices and likeness.name in _REARRANGED
    }
    found: dict[str, Likeness] = {}
    for name in differing:
        likeness = rows.get(places[name].module)
        own = likenesses.get(name)
        known = own is not None and own.name not in _REARRANGED
        if likeness is None or known or name in matrices:
            continue
        base, candidate = stored.read(name)
        left = float((candidate.sort().values - base.sort().values).norm())
        if left <= _MOVED * float((candidate - base).norm()):
            found[name] = likeness
    return found


def group_alike(
    likenesses: Mapping[str, Likeness], places: Mapping[str, WeightPlace], matrices: Collection[str]
) -> Iterator[WeightCause]:
    """Yield weights that differ alike, by module where each of theirs may be asked apart.

    A rounding that a single matrix shows, or norm weights alone, may as well be chance: a few
    equal numbers lie on every grid.
    """
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, likeness in likenesses.items():
        groups[_way(likeness, places[name])].append(name)

    def told(tensors: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(likenesses[name].name for name in tensors))

    for tensors in groups.values():
        first = likenesses[tensors[0]]
        rounded = first.kind == "precision"
        if rounded and sum(name in matrices for name in tensors) < _FEWEST_ROUNDED:
            continue
        cut = cut_by_module(tensors, places) if first.name in _REARRANGED else ()
        yield build_cause(
            f"rounded to {told(tensors)}" if rounded else told(tensors),
            tensors,
            places,
            [build_cause(told(part), part, places) for part in cut],
        )


def _way(likeness: Likeness, place: WeightPlace) -> tuple[str, ...]:
    """What tensors have in common that differ for one reason."""
    if likeness.kind == "precision":
        return likeness.name, likeness.detail
    if likeness.name in _REARRANGED:
        return "rearranged", place.kind
    return (likeness.name,)
