"""Which weights of two checkpoints differ for one reason, told by reading them and nothing else.

Weights that differ in the same way (all query projections with their heads in another order, +1 on
every norm weight, two layers swapped) are one mistake of one conversion: they are one candidate of
a search, and one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.models.checkpoint_files import CheckpointFiles
from evalguard.models.weight_places import WeightKind, WeightPlace, locate_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from evalguard.run.bisection.alike_weights import (
    describe_differences,
    find_moved_biases,
    group_alike,
)
from evalguard.run.bisection.exchanged_weights import find_exchanged
from evalguard.run.bisection.number_weights import find_numbers
from evalguard.run.bisection.stored_names import StoredNames
from evalguard.run.bisection.undone_weights import find_undone
from evalguard.run.bisection.weight_cause import WeightCause, build_cause


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
    stored = StoredNames.of(model, base, candidate)
    causes: list[WeightCause] = []
    left = dict.fromkeys(differing)
    for words, tensors in find_exchanged(stored, places, differing):
        causes.append(build_cause(words, tensors, places))
        for name in tensors:
            left.pop(name)
    places = _place_tied(places, stored)
    matrices = {name for name, one in model.state_dict().items() if one.ndim > 1}
    folders = [str(files.files[0].parent) for files in (base, candidate)]
    likenesses = describe_differences(stored, folders[0], folders[1], left)
    rounded = {n for n in matrices if n in likenesses and likenesses[n].kind == "precision"}
    for cause in find_undone(stored, places, [n for n in left if n not in rounded], matrices):
        causes.append(cause)
        for name in cause.tensors:
            left.pop(name)
            likenesses.pop(name, None)
    likenesses |= find_moved_biases(stored, places, left, likenesses, matrices)
    for words, tensors in find_numbers(stored, places, left, likenesses, matrices):
        causes.append(build_cause(words, tensors, places))
        for name in tensors:
            likenesses.pop(name, None)
    causes += group_alike(likenesses, places, matrices)
    return tuple(causes)


def find_quantised_causes(
    model: PreTrainedModel, base: CheckpointFiles, candidate: Path, differing: Sequence[str]
) -> tuple[WeightCause, ...]:
    """Do the same for a GGUF file, where what a rounding is of is no cause: its kinds of weights
    are asked apart."""
    stored = StoredNames.of(model, base, base)
    places = _place_tied(locate_weights(model), stored)
    stored = replace(stored, candidate={})
    likenesses = describe_differences(stored, str(base.files[0].parent), str(candidate), differing)
    faults = {name: one for name, one in likenesses.items() if one.kind == "structure"}
    matrices = {name for name, one in model.state_dict().items() if one.ndim > 1}
    return tuple(group_alike(faults, places, matrices))


def _place_tied(places: Mapping[str, WeightPlace], stored: StoredNames) -> dict[str, WeightPlace]:
    """Give tensors that are one in both files the kind of the first: one mistake made them both."""
    kinds: dict[tuple[str, str], WeightKind] = {}
    found = dict(places)
    for name, place in places.items():
        if name in stored.base and name in stored.candidate:
            held = stored.base[name], stored.candidate[name]
            found[name] = replace(place, kind=kinds.setdefault(held, place.kind))
    return found
