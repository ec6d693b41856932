"""Weights that stand under the name of others: swapped, shifted or copied layers, bit for bit."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from evalguard.models.checkpoint_files import open_stored_tensors, shape_of
from evalguard.models.weight_places import WeightPlace
from evalguard.run.bisection.stored_names import StoredNames
from evalguard.run.bisection.weight_cause import name_tensor


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

    for name, other in taken.items():
        one, another = _seats(name, other, places)
        group[find(one)] = find(another)
    found: dict[object, list[str]] = defaultdict(list)
    for name, other in taken.items():
        found[find(_seats(name, other, places)[0])].append(name)
    for tensors in found.values():
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
    seats = {_seats(name, other, places) for name, other in taken.items()}
    for name, others in holders.items():
        beside = [other for other in others if _seats(name, other, places) in seats]
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
    told = hashlib.blake2b(str((tensor.dtype, tuple(tensor.shape))).encode(), digest_size=16)
    told.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return told.digest()


def _seats(name: str, other: str, places: Mapping[str, WeightPlace]) -> tuple[object, object]:
    """Between what two tensors are exchanged: layers, or modules in each of the layers."""
    layers = places[name].layer, places[other].layer
    if layers[0] == layers[1] or None in layers:
        return name_tensor(name, places), name_tensor(other, places)
    return layers


def _exchange_words(taken: Mapping[str, str]) -> str:
    if all(taken.get(other) == name for name, other in taken.items()):
        return "swapped"
    if any(other not in taken for other in taken.values()):
        return "a copy of other weights"
    return "in another order"
