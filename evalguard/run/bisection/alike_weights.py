"""Weights that differ alike, as ``evalguard tensors`` tells it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from evalguard.core.reports.tensors_report import Likeness
from evalguard.core.tensors.structure import UNKNOWN_DAMAGE
from evalguard.errors import EvalguardError
from evalguard.models.weight_places import WeightPlace
from evalguard.run.bisection.stored_names import StoredNames
from evalguard.run.bisection.weight_cause import WeightCause, build_cause, cut_by_module
from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

# Faults of layout that one mistake makes of several tensors: rows here are columns there.
_REARRANGED = frozenset({"rows permuted", "columns permuted", "heads permuted", "rotary pairs"})
# Faults of which the detail is no place, and says what was done.
_TOLD_WITH_DETAIL = frozenset({"constant", "pruned", "low rank"})
_FEWEST_ROUNDED = 2  # matrices of one rounding


def describe_differences(
    stored: StoredNames, base: str, candidate: str, differing: Iterable[str]
) -> dict[str, Likeness]:
    """What the difference of each looks like; those of which nothing is known are left out.

    Of what loading stacks, what all parts that differ look like.

    Args:
        base, candidate: paths, of which the candidate's may be a GGUF file.
    """
    try:
        report = compare_tensors(base, candidate, TensorOptions(processes=0))
    except EvalguardError:
        return {}  # a form that only loading reads: they are searched without it
    deltas = {delta.name: delta for delta in report.deltas}
    found: dict[str, Likeness] = {}
    for name in differing:
        keys = stored.stacked.get(name) or frozenset({stored.base.get(name, "")})
        parts = [deltas[key] for key in sorted(keys) if key in deltas]
        if name in stored.candidate:  # what is compared has to be what is loaded
            parts = [one for one in parts if one.candidate_name == stored.candidate[name]]
        looks = [one.likeness for one in parts if one.state not in ("identical", "equal")]
        first = looks[0] if looks else None
        if (
            first is not None
            and first.kind in ("structure", "precision")
            and first.name not in UNKNOWN_DAMAGE
            and all(one is not None and one.name == first.name for one in looks)
        ):
            found[name] = first
    return found


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
        found = dict.fromkeys(likenesses[name].name for name in tensors)
        details = {likenesses[name].detail for name in tensors}
        if len(details) == 1 and found.keys() <= _TOLD_WITH_DETAIL:
            found = dict.fromkeys((*found, *details))
        return ", ".join(found)

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
