"""Which weights of two checkpoints differ for one reason, told by reading them and nothing else.

Weights that differ in the same way (all query projections with their heads in another order, +1 on
every norm weight, two layers swapped) are one mistake of one conversion: they are one candidate of
a search, and one answer.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard import tools
from evalguard.bisect.settings.compensated_weights import find_compensated
from evalguard.bisect.settings.stored_names import StoredNames
from evalguard.bisect.settings.weight_names import (
    WeightCause,
    build_cause,
    cut_by_module,
    name_tensor,
)
from evalguard.core.tensor_structure import UNKNOWN_DAMAGE, Likeness
from evalguard.errors import EvalguardError
from evalguard.models.checkpoint_files import CheckpointFiles, open_stored_tensors, shape_of
from evalguard.models.unloaded_models import WeightKind, WeightPlace, locate_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    if not tools.has("compare_tensors"):
        return {}
    options = tools.fetch("TensorOptions")(processes=0)
    try:
        report = tools.fetch("compare_tensors")(base, candidate, options)
    except EvalguardError:
        return {}  # a form that only loading reads: they are searched without it
    deltas = {delta.name: delta for delta in report.deltas}
    likenesses: dict[str, Likeness] = {}
    for name in differing:
        keys = stored.stacked.get(name) or frozenset({stored.base.get(name, "")})
        parts = [deltas[key] for key in sorted(keys) if key in deltas]
        if name in stored.candidate:  # what is compared has to be what is loaded
            parts = [part for part in parts if part.candidate_name == stored.candidate[name]]
        looks = [part.likeness for part in parts if part.state not in ("identical", "equal")]
        first = looks[0] if looks else None
        if (
            first is not None
            and first.kind in ("structure", "precision")
            and first.name not in UNKNOWN_DAMAGE
            and all(look is not None and look.name == first.name for look in looks)
        ):
            likenesses[name] = first
    return likenesses


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
    moved: dict[str, Likeness] = {}
    for name in differing:
        likeness = rows.get(places[name].module)
        own = likenesses.get(name)
        known = own is not None and own.name not in _REARRANGED
        if likeness is None or known or name in matrices:
            continue
        base, candidate = stored.read(name)
        residual = float((candidate.sort().values - base.sort().values).norm())
        if residual <= _MOVED * float((candidate - base).norm()):
            moved[name] = likeness
    return moved


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
        names = dict.fromkeys(likenesses[name].name for name in tensors)
        details = {likenesses[name].detail for name in tensors}
        if len(details) == 1 and names.keys() <= _TOLD_WITH_DETAIL:
            names = dict.fromkeys((*names, *details))
        return ", ".join(names)

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


def find_exchanged(
    stored: StoredNames, places: Mapping[str, WeightPlace], differing: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield how weights were exchanged, and which."""
    taken = _find_taken(stored, places, differing)
    # what exchanges weights with each other belongs together
    group: dict[object, object] = {}

    def find(one: object) -> object:
        while group.setdefault(one, one) != one:
            one = group[one]
        return one

    for name, source in taken.items():
        seat, another = _seats(name, source, places)
        group[find(seat)] = find(another)
    exchanged: dict[object, list[str]] = defaultdict(list)
    for name, source in taken.items():
        exchanged[find(_seats(name, source, places)[0])].append(name)
    for tensors in exchanged.values():
        yield _exchange_words({name: taken[name] for name in tensors}), tensors


def _find_taken(
    stored: StoredNames, places: Mapping[str, WeightPlace], differing: Sequence[str]
) -> dict[str, str]:
    """Name -> the name in the base of what stands there in the candidate.

    Tensors that several names hold in the base, and those of one number throughout (norm weights
    of 1), are told by what their neighbours in the layer are.
    """
    with ExitStack() as stack:
        sides = [open_stored_tensors(files, stack) for files in stored.files]
        asked = {name: key for name in differing if (key := stored.candidate.get(name))}
        shapes = {shape_of(sides[1][key]) for key in asked.values()}
        owners: dict[bytes, list[str]] = defaultdict(list)
        for name, key in stored.base.items():
            if shape_of(sides[0][key]) in shapes:
                owners[_digest(sides[0][key][...])].append(name)
        holders: dict[str, list[str]] = {}
        telling: set[str] = set()
        for name, key in asked.items():
            tensor = sides[1][key][...]
            holders[name] = owners.get(_digest(tensor), [])
            if name in holders[name]:
                holders[name] = []
            if len(holders[name]) == 1 and bool((tensor != tensor.flatten()[0]).any()):
                telling.add(name)
    taken = {name: holders[name][0] for name in telling}
    seats = {_seats(name, source, places) for name, source in taken.items()}
    for name, sources in holders.items():
        beside = [source for source in sources if _seats(name, source, places) in seats]
        if name not in taken and beside:
            taken[name] = beside[0]
    return {name: taken[name] for name in differing if name in taken}


def _digest(tensor: Any) -> bytes:
    """Digest of a torch tensor's shape and values, as bfloat16 holds them: rounding may lie on top.

    Two tensors that are not one differ by more in some element.
    """
    import torch

    if tensor.is_floating_point():
        tensor = tensor.to(torch.bfloat16)
    digest = hashlib.blake2b(str((tensor.dtype, tuple(tensor.shape))).encode(), digest_size=16)
    digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _seats(name: str, other: str, places: Mapping[str, WeightPlace]) -> tuple[object, object]:
    """Between what two tensors are exchanged: layers, or modules in each of the layers."""
    layers = places[name].layer, places[other].layer
    if layers[0] == layers[1] or None in layers:
        return name_tensor(name, places), name_tensor(other, places)
    return layers


def _exchange_words(taken: Mapping[str, str]) -> str:
    if all(taken.get(source) == name for name, source in taken.items()):
        return "swapped"
    if any(source not in taken for source in taken.values()):
        return "a copy of other weights"
    return "in another order"


# Two tensors with one of these differ alike only if it is by the same number.
_SHIFTED, _SCALED = "plus a constant", "scaled"
_BY_A_NUMBER = frozenset({_SHIFTED, _SCALED})
_CLOSE = 0.01  # of the largest weight, or of a number: what bfloat16 may hide
_TELLING = 0.05  # of the largest weight: a smaller number may be a rounding's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """What weights became others by. ``either``: both a factor and a constant explain it."""

    fault: str
    by: float
    either: float | None = None


def find_numbers(
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    differing: Iterable[str],
    likenesses: Mapping[str, Likeness],
    matrices: Collection[str],
) -> Iterator[tuple[str, list[str]]]:
    """Yield by which number weights of a kind are off, and which.

    Norm weights that hardly scatter are shifted as well as scaled: what those beside them are
    decides.
    """
    numbers: dict[str, _Number] = {}
    for name in differing:
        likeness = likenesses.get(name)
        known = likeness.name if likeness is not None and likeness.name in _BY_A_NUMBER else ""
        if name in stored.base and (known or name not in matrices):
            number = _read_number(name, stored, known)
            if number is not None:
                numbers[name] = number
    shifts = {(places[n].kind, entry.by) for n, entry in numbers.items() if entry.fault == _SHIFTED}
    for name, number in numbers.items():
        if number.either is not None and any(
            kind == places[name].kind and _close(by, number.either) for kind, by in shifts
        ):
            numbers[name] = _Number(fault=_SHIFTED, by=number.either)
    groups: list[tuple[str, str, float, list[str]]] = []
    for name, number in numbers.items():
        kind = places[name].kind
        for group_kind, fault, by, tensors in groups:
            if (group_kind, fault) == (kind, number.fault) and _close(by, number.by):
                tensors.append(name)
                break
        else:
            groups.append((kind, number.fault, number.by, [name]))
    for _, fault, by, tensors in groups:
        yield f"{fault}, {_number_text(fault, by)}", tensors


def _number_text(fault: str, by: float) -> str:
    """As few digits as a rounding on top leaves; of a factor near 1 all that tell it from 1."""
    sign = "+" if fault == _SHIFTED else ""
    text = next(
        (text for digits in (1, 2) if _close(float(text := f"{by:{sign}.{digits}g}"), by)),
        f"{by:{sign}.3g}",
    )
    if fault == _SHIFTED:
        return text
    return f"by {by:.6g}" if _close(by, 1.0) else f"by {text}"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * max(abs(one), abs(other))


def _read_number(name: str, stored: StoredNames, known: str) -> _Number | None:
    """By which number a weight is off; None where by none.

    Args:
        known: "scaled" or "plus a constant", where that was recognised; "" else.
    """
    base, candidate = (side.flatten() for side in stored.read(name))
    largest = float(candidate.abs().max())
    if largest == 0.0:  # zeroed: no number is left
        return None
    difference = candidate - base
    shift = float(difference.median())
    apart = float((difference - shift).abs().max())
    scatter = float((base - base.median()).abs().max())
    squares = float(base @ base)
    factor = float(base @ candidate) / squares if squares else 0.0
    residual = float((candidate - factor * base).abs().max())
    shifted = apart <= _CLOSE * largest and abs(shift) >= _TELLING * largest
    scaled = squares > 0.0 and residual <= _CLOSE * largest and abs(factor - 1.0) >= _TELLING
    if known == _SHIFTED or (shifted and (scatter > 2.0 * _CLOSE * largest or not squares)):
        return _Number(fault=_SHIFTED, by=shift)
    if known == _SCALED or scaled:
        return _Number(fault=_SCALED, by=factor, either=shift if shifted else None)
    return None


def find_weight_causes(
    model: PreTrainedModel,
    base: CheckpointFiles,
    candidate: CheckpointFiles,
    differing: Sequence[str],
    switches: Mapping[str, str],
) -> tuple[WeightCause, ...]:
    """Group weights by the way in which they differ; what differs in no known way is in no group.

    Args:
        model: may be on the meta device.
        differing: names in its state.
        switches: as of :func:`find_compensated`.
    """
    if not differing:
        return ()
    places = locate_weights(model)
    stored = StoredNames.of(model, base, candidate)
    causes: list[WeightCause] = []
    remaining = dict.fromkeys(differing)
    for words, tensors in find_exchanged(stored, places, differing):
        causes.append(build_cause(words, tensors, places))
        for name in tensors:
            remaining.pop(name)
    places = _place_tied(places, stored)
    matrices = {name for name, tensor in model.state_dict().items() if tensor.ndim > 1}
    folders = [str(files.files[0].parent) for files in (base, candidate)]
    likenesses = describe_differences(stored, folders[0], folders[1], remaining)
    rounded = {n for n in matrices if n in likenesses and likenesses[n].kind == "precision"}
    unlike = [name for name in remaining if name not in rounded]
    for cause in find_compensated(stored, places, unlike, matrices, switches):
        causes.append(cause)
        for name in cause.tensors:
            remaining.pop(name)
            likenesses.pop(name, None)
    likenesses |= find_moved_biases(stored, places, remaining, likenesses, matrices)
    for words, tensors in find_numbers(stored, places, remaining, likenesses, matrices):
        causes.append(build_cause(words, tensors, places))
        for name in tensors:
            likenesses.pop(name, None)
    causes += group_alike(likenesses, places, matrices)
    return tuple(causes)


def find_quantised_causes(
    model: PreTrainedModel, base: CheckpointFiles, candidate: Path, differing: Sequence[str]
) -> tuple[WeightCause, ...]:
    """Do the same for a GGUF file or a packed folder, where what a rounding is of is no cause: its
    kinds of weights are asked apart."""
    stored = StoredNames.of(model, base, base)
    places = _place_tied(locate_weights(model), stored)
    # a packed tensor is stored in parts, and compared under the model's own name
    names = {name: name for name in differing} | dict(stored.base)
    stored = replace(stored, base=names, candidate={})
    likenesses = describe_differences(stored, str(base.files[0].parent), str(candidate), differing)
    faults = {
        name: likeness for name, likeness in likenesses.items() if likeness.kind == "structure"
    }
    matrices = {name for name, tensor in model.state_dict().items() if tensor.ndim > 1}
    return tuple(group_alike(faults, places, matrices))


def _place_tied(places: Mapping[str, WeightPlace], stored: StoredNames) -> dict[str, WeightPlace]:
    """Give tensors that are one in both files the kind of the first: one mistake made them both."""
    kinds: dict[tuple[str, str], WeightKind] = {}
    placed = dict(places)
    for name, place in places.items():
        if name in stored.base and name in stored.candidate:
            held = stored.base[name], stored.candidate[name]
            placed[name] = replace(place, kind=kinds.setdefault(held, place.kind))
    return placed
