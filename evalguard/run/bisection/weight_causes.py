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
from typing import TYPE_CHECKING, Any

from evalguard.core.reports.tensors_report import Likeness
from evalguard.core.tensors.structure import UNKNOWN_DAMAGE
from evalguard.errors import EvalguardError
from evalguard.models.checkpoint_files import CheckpointFiles, open_stored_tensors
from evalguard.models.checkpoint_tensors import map_loading_names, map_tied_names
from evalguard.models.comparison import WeightKind, WeightPlace, locate_weights
from evalguard.run.tensors.compare import TensorOptions, compare_tensors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# Faults of layout that one mistake makes of several tensors: rows here are columns there.
_REARRANGED = frozenset(
    {"rows permuted", "rows swapped", "columns permuted", "heads permuted", "rotary pairs"}
)
# Two tensors with one of these differ alike only if it is by the same number.
_SHIFTED, _SCALED = "plus a constant", "scaled"
_BY_A_NUMBER = frozenset({_SHIFTED, _SCALED})
_FEWEST_ROUNDED = 2  # matrices of one rounding
_FEW, _FEW_LAYERS = 2, 4  # names that are listed; more are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCause:
    """Weights that differ in one and the same way.

    Attributes:
        name: what they are called together: "q_proj (all 5, heads permuted)".
        tensors: their names in the model's state, in its order.
        parts: the same, cut by module where modules of several names hold them and each may be
            asked apart; () where not.
    """

    name: str
    tensors: tuple[str, ...]
    parts: tuple[WeightCause, ...] = ()


def find_weight_causes(
    model: PreTrainedModel,
    base: CheckpointFiles,
    candidate: CheckpointFiles,
    differing: Sequence[str],
) -> tuple[WeightCause, ...]:
    """Group weights by the way in which they differ; what differs in no known way is in no group.

    Args:
        model: may be on the meta device.
        differing: names in its state.
    """
    if not differing:
        return ()
    places = locate_weights(model)
    stored = _StoredNames.of(model, base, candidate)
    causes: list[WeightCause] = []
    left = dict.fromkeys(differing)
    for words, tensors in _find_exchanged(stored, places, differing):
        causes.append(_cause(words, tensors, places))
        for name in tensors:
            left.pop(name)
    places = _place_tied(places, stored)
    matrices = {name for name, one in model.state_dict().items() if one.ndim > 1}
    likenesses = _describe_differences(stored, base, candidate, left)
    likenesses |= _find_moved_biases(stored, places, left, likenesses, matrices)
    for words, tensors in _find_numbers(stored, places, left, likenesses, matrices):
        causes.append(_cause(words, tensors, places))
        for name in tensors:
            likenesses.pop(name, None)
    causes += _group_alike(likenesses, places, matrices)
    return tuple(causes)


def _place_tied(places: Mapping[str, WeightPlace], stored: _StoredNames) -> dict[str, WeightPlace]:
    """Give tensors that are one in both files the kind of the first: one mistake made them both."""
    kinds: dict[tuple[str, str], WeightKind] = {}
    found = dict(places)
    for name, place in places.items():
        if name in stored.base and name in stored.candidate:
            held = stored.base[name], stored.candidate[name]
            found[name] = replace(place, kind=kinds.setdefault(held, place.kind))
    return found


def _cause(
    words: str,
    tensors: Collection[str],
    places: Mapping[str, WeightPlace],
    parts: Iterable[WeightCause] = (),
) -> WeightCause:
    name = name_weights(tensors, places, words)
    return WeightCause(name=name, tensors=tuple(tensors), parts=tuple(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredNames:
    """The files of both sides, and under which name each stores a tensor of the model's.

    What loading converts (stacks, splits) is left out.
    """

    base: Mapping[str, str]
    candidate: Mapping[str, str]
    files: tuple[CheckpointFiles, CheckpointFiles]

    @classmethod
    def of(
        cls, model: PreTrainedModel, base: CheckpointFiles, candidate: CheckpointFiles
    ) -> _StoredNames:
        sides = []
        tied = map_tied_names(model)
        for files in (base, candidate):
            with ExitStack() as stack:
                loaded = map_loading_names(model, open_stored_tensors(files, stack))
            names = {
                into.names[0]: key
                for key, into in loaded.items()
                if not into.converted and len(into.names) == 1
            }
            for name, source in tied.items():
                held = names.get(source) or names.get(name)
                if held:
                    names.setdefault(name, held)
                    names.setdefault(source, held)
            sides.append(names)
        return cls(base=sides[0], candidate=sides[1], files=(base, candidate))

    def read(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The base's and the candidate's elements of a tensor, one after the other, as float64."""
        sides = zip(self.files, (self.base, self.candidate), strict=True)
        with ExitStack() as stack:
            base, candidate = (
                open_stored_tensors(files, stack)[names[name]][...].double().flatten()
                for files, names in sides
            )
        return base, candidate


# Weights that stand under the name of others: swapped, shifted or copied layers, bit for bit.


def _find_exchanged(
    stored: _StoredNames, places: Mapping[str, WeightPlace], differing: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield how weights were exchanged, and which."""
    taken = _find_taken(stored, places, differing)
    # what exchanges weights with each other belongs together
    group: dict[object, object] = {}

    def find(one: object) -> object:
        while group.setdefault(one, one) != one:
            one = group[one]
        return one

    for name, other in taken.items():
        one, another = _seats(name, other, places)
        group[find(one)] = find(another)
    found: dict[object, list[str]] = defaultdict(list)
    for name, other in taken.items():
        found[find(_seats(name, other, places)[0])].append(name)
    for tensors in found.values():
        yield _exchange_words({name: taken[name] for name in tensors}), tensors


def _find_taken(
    stored: _StoredNames, places: Mapping[str, WeightPlace], differing: Sequence[str]
) -> dict[str, str]:
    """Name -> the name in the base of what stands there in the candidate.

    Tensors that several names hold in the base, and those of one number throughout (norm weights
    of 1), are told by what their neighbours in the layer are.
    """
    with ExitStack() as stack:
        sides = [open_stored_tensors(files, stack) for files in stored.files]
        asked = {name: key for name in differing if (key := stored.candidate.get(name))}
        shapes = {_shape(sides[1][key]) for key in asked.values()}
        owners: dict[bytes, list[str]] = defaultdict(list)
        for name, key in stored.base.items():
            if _shape(sides[0][key]) in shapes:
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
    seats = {_seats(name, other, places) for name, other in taken.items()}
    for name, others in holders.items():
        beside = [other for other in others if _seats(name, other, places) in seats]
        if name not in taken and beside:
            taken[name] = beside[0]
    return {name: taken[name] for name in differing if name in taken}


def _shape(stored: Any) -> tuple[int, ...]:
    """Of a tensor in a file, which is not read, or in memory."""
    return tuple(stored.get_shape() if hasattr(stored, "get_shape") else stored.shape)


def _digest(tensor: Any) -> bytes:
    """Digest of a torch tensor's shape and values, as bfloat16 holds them: rounding may lie on top.

    Two tensors that are not one differ by more in some element.
    """
    import torch

    if tensor.is_floating_point():
        tensor = tensor.to(torch.bfloat16)
    told = hashlib.blake2b(str((tensor.dtype, tuple(tensor.shape))).encode(), digest_size=16)
    told.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return told.digest()


def _seats(name: str, other: str, places: Mapping[str, WeightPlace]) -> tuple[object, object]:
    """Between what two tensors are exchanged: layers, or modules in each of the layers."""
    layers = places[name].layer, places[other].layer
    if layers[0] == layers[1] or None in layers:
        return _own_name(name, places), _own_name(other, places)
    return layers


def _exchange_words(taken: Mapping[str, str]) -> str:
    if all(taken.get(other) == name for name, other in taken.items()):
        return "swapped"
    if any(other not in taken for other in taken.values()):
        return "a copy of other weights"
    return "in another order"


# Weights that differ alike, as ``evalguard tensors`` tells it.


def _describe_differences(
    stored: _StoredNames,
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


def _find_moved_biases(
    stored: _StoredNames,
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
        if likeness is None or name in likenesses or name in matrices:
            continue
        base, candidate = stored.read(name)
        left = float((candidate.sort().values - base.sort().values).norm())
        if left <= _MOVED * float((candidate - base).norm()):
            found[name] = likeness
    return found


def _group_alike(
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
        cut = _cut_by_module(tensors, places) if first.name in _REARRANGED else ()
        yield _cause(
            f"rounded to {told(tensors)}" if rounded else told(tensors),
            tensors,
            places,
            [_cause(told(part), part, places) for part in cut],
        )


def _way(likeness: Likeness, place: WeightPlace) -> tuple[str, ...]:
    """What tensors have in common that differ for one reason."""
    if likeness.kind == "precision":
        return likeness.name, likeness.detail
    if likeness.name in _REARRANGED:
        return "rearranged", place.kind
    return (likeness.name,)


# Weights that are others times, or plus, one number: the same number of all is one mistake.


_CLOSE = 0.01  # of the largest weight, or of a number: what bfloat16 may hide
_TELLING = 0.05  # of the largest weight: a smaller number may be a rounding's


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """What weights became others by. ``either``: both a factor and a constant explain it."""

    fault: str
    by: float
    either: float | None = None


def _find_numbers(
    stored: _StoredNames,
    places: Mapping[str, WeightPlace],
    differing: Iterable[str],
    likenesses: Mapping[str, Likeness],
    matrices: Collection[str],
) -> Iterator[tuple[str, list[str]]]:
    """Yield by which number weights of a kind are off, and which.

    Norm weights that hardly scatter are shifted as well as scaled: what those beside them are
    decides.
    """
    told: dict[str, _Number] = {}
    for name in differing:
        likeness = likenesses.get(name)
        known = likeness.name if likeness is not None and likeness.name in _BY_A_NUMBER else ""
        if known or name not in matrices:
            number = _read_number(name, stored, known)
            if number is not None:
                told[name] = number
    shifts = {(places[n].kind, one.by) for n, one in told.items() if one.fault == _SHIFTED}
    for name, number in told.items():
        if number.either is not None and any(
            kind == places[name].kind and _close(by, number.either) for kind, by in shifts
        ):
            told[name] = _Number(fault=_SHIFTED, by=number.either)
    groups: list[tuple[str, str, float, list[str]]] = []
    for name, number in told.items():
        kind = places[name].kind
        for other, fault, by, tensors in groups:
            if (other, fault) == (kind, number.fault) and _close(by, number.by):
                tensors.append(name)
                break
        else:
            groups.append((kind, number.fault, number.by, [name]))
    for _, fault, by, tensors in groups:
        yield f"{fault}, {_number_text(fault, by)}" if by else "zeroed", tensors


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


def _read_number(name: str, stored: _StoredNames, known: str) -> _Number | None:
    """By which number a weight is off; None where by none.

    Args:
        known: "scaled" or "plus a constant", where that was recognised; "" else.
    """
    base, candidate = stored.read(name)
    largest = float(candidate.abs().max())
    if largest == 0.0:
        return _Number(fault=_SCALED, by=0.0)  # whatever else it looks like
    difference = candidate - base
    shift = float(difference.median())
    apart = float((difference - shift).abs().max())
    scatter = float((base - base.median()).abs().max())
    squares = float(base @ base)
    factor = float(base @ candidate) / squares if squares else 0.0
    left = float((candidate - factor * base).abs().max())
    shifted = apart <= _CLOSE * largest and abs(shift) >= _TELLING * largest
    scaled = squares > 0.0 and left <= _CLOSE * largest and abs(factor - 1.0) >= _TELLING
    if known == _SHIFTED or (shifted and (scatter > 2.0 * _CLOSE * largest or not squares)):
        return _Number(fault=_SHIFTED, by=shift)
    if known == _SCALED or scaled:
        return _Number(fault=_SCALED, by=factor, either=shift if shifted else None)
    return None


# Names of groups, for people.


def _cut_by_module(
    tensors: Collection[str], places: Mapping[str, WeightPlace]
) -> tuple[tuple[str, ...], ...]:
    """Cut tensors by the names of their modules (q_proj, o_proj); () where there is only one."""
    cut: dict[str, list[str]] = defaultdict(list)
    for name in tensors:
        cut[_own_name(name, places)].append(name)
    return tuple(map(tuple, cut.values())) if len(cut) > 1 else ()


def name_weights(
    tensors: Collection[str], places: Mapping[str, WeightPlace], difference: str = ""
) -> str:
    """What some weights are called together: "q_proj (all 5, heads permuted)"."""
    subject, many = _subject(tensors, places)
    told = ", ".join(part for part in (many, difference) if part)
    return f"{subject} ({told})" if told else subject


def _subject(tensors: Collection[str], places: Mapping[str, WeightPlace]) -> tuple[str, str]:
    """What they are called, and how many they are where that does not say it."""
    modules = list(dict.fromkeys(places[name].module for name in tensors))
    own = list(dict.fromkeys(_own_name(name, places) for name in tensors))
    layers = list(dict.fromkeys(places[name].layer for name in tensors))
    if len(modules) == 1:
        return modules[0] or own[0], ""
    total = len({place.layer for place in places.values()} - {None})
    if len(own) > _FEW and None not in layers:
        if len(layers) == total:
            return "all layers", ""
        if len(layers) <= _FEW_LAYERS:
            return ", ".join(f"layers.{layer}" for layer in layers), ""
        return f"{len(layers)} layers", ""
    kinds = {places[name].kind for name in tensors}
    if len(own) <= _FEW:
        subject, alike = ", ".join(own), [n for n in places if _own_name(n, places) in own]
    elif len(kinds) == 1:
        subject, alike = next(iter(kinds)), [n for n in places if places[n].kind in kinds]
    else:
        subject, alike = "tensors", list(places)
    if len(tensors) == len(alike):
        return subject, f"all {len(tensors)}"
    if None not in layers and len(layers) <= _FEW_LAYERS and len(layers) < total:
        *others, last = map(str, layers)
        return subject, f"layers {', '.join(others)} and {last}" if others else f"layer {last}"
    return subject, f"{len(tensors)} of {len(alike)}"


def _own_name(tensor: str, places: Mapping[str, WeightPlace]) -> str:
    """The last part of its module's name that is no number."""
    parts = [part for part in places[tensor].module.split(".") if part and not part.isdigit()]
    return parts[-1] if parts else tensor.rpartition(".")[2]
