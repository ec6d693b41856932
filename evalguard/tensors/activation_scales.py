"""Scales of activations and caches: paired by what they are of, and judged where one side alone has
them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalguard.core.name_map import NameAlignment, NameMap, NamePair
from evalguard.core.tensor_structure import Fault, Likeness
from evalguard.errors import EvaluationError
from evalguard.tensor_files.opening import TensorFiles
from evalguard.tensor_files.packed.activation_scales import scale_key, scale_use
from evalguard.tensor_files.stored_tensor import StoredTensor
from evalguard.tensors.streamed_sums import StoredPair
from evalguard.tensors.tensors_report import ScaleFault, ScaleFaultKind, TensorDelta

_MOST_READ = 1 << 16  # elements; a scale of each channel is shorter
_NOT_MEASURED = (".prob_scale", ".scale_ub")  # probabilities end at 1; a bound is no measured scale
_NEVER: Fault = "never calibrated"
_SWAPPED: Fault = "swapped"
_CODES = (".k_proj.weight", ".k_proj.qweight", ".k_proj.weight_packed")
# Attention without a cache: of what comes before the text model.
_NO_CACHE = ("vision", "visual", "audio", "encoder", "image")


def align_scales(base: TensorFiles, candidate: TensorFiles, names: NameMap) -> NameAlignment:
    """Pair the scales of two checkpoints, by a name map and by what each is of."""
    aligned = names.align(base.activation_scales, candidate.activation_scales)
    keys = [_by_key(side) for side in (aligned.base_only, aligned.cand_only)]
    added = [NamePair(base=keys[0][key], cand=keys[1][key]) for key in keys[0] if key in keys[1]]
    here, there = ({getattr(pair, side) for pair in added} for side in ("base", "cand"))
    return replace(
        aligned,
        pairs=(*aligned.pairs, *added),
        base_only=tuple(name for name in aligned.base_only if name not in here),
        cand_only=tuple(name for name in aligned.cand_only if name not in there),
    )


def _by_key(names: Sequence[str]) -> dict[str, str]:
    """Key -> name, of keys that one name alone has."""
    counts = Counter(map(scale_key, names))
    return {key: name for name in names if counts[key := scale_key(name)] == 1}


def list_missing(base: TensorFiles, candidate: TensorFiles, scales: NameAlignment) -> set[str]:
    """Return the scales of one side alone that the other needs: it has them in other layers, or its
    config asks for them."""
    sides = ((scales.base_only, candidate), (scales.cand_only, base))
    return {name for names, opposite in sides if names for name in _list_needed(opposite, names)}


def _list_needed(side: TensorFiles, names: Sequence[str]) -> Iterator[str]:
    """Yield those of some scales that a checkpoint lacks and has to have."""
    held = [(scale_use(scale), *_split(scale_key(scale))) for scale in side.activation_scales]
    ends = {end for _, _, end in held}
    places = {(use, layer) for use, layer, _ in held}
    packed = {scale_key(name) for name, tensor in side.tensors.items() if tensor.parts}
    for name in names:
        use, key = scale_use(name), scale_key(name)
        layer, end = _split(key)
        if use != "cache" and f"{key.rpartition('.')[0]}.weight" not in packed:
            continue  # the module's weight is in plain numbers there
        # the library of the other side may have one scale of keys and values, or of what it fuses
        alike = (use, layer) in places
        if end in ends or (side.quantisation.asks_for(use) is True and not alike):
            yield name


def _split(key: str) -> tuple[str, str]:
    layer, _, rest = key.partition(".")
    return layer, rest


def find_scale_faults(
    base: TensorFiles, candidate: TensorFiles, scales: NameAlignment
) -> tuple[ScaleFault, ...]:
    """Return what is wrong with the candidate's scales that the base has not to show it.

    Of one that the candidate's config asks for and that neither side has, too.
    """
    values = {
        name: _read(candidate.activation_scales[name])
        for name in scales.cand_only
        if name.endswith("scale") and not name.endswith(_NOT_MEASURED)
    }
    faults: dict[ScaleFaultKind, list[str]] = defaultdict(list)
    for name, held in values.items():
        if held is None or not held.size:
            continue
        if not np.isfinite(held).all():
            faults["not finite"].append(name)
        elif (held < 0).any():
            faults["negative"].append(name)
        elif (held == 0).any():
            faults["zero"].append(name)
    for names in _group_by_end(values).values():
        all_ones = all(held is not None and _is_one(held) for held in map(values.get, names))
        if all_ones and candidate.quantisation.asks_for(scale_use(names[0])) is not False:
            faults["never calibrated"] += names
    lacking = set(_list_asked(candidate)) - set(_list_asked(base))
    faults["missing"] += sorted(lacking)
    return tuple(
        ScaleFault(
            fault=fault,
            names=tuple(names),
            asked=any(candidate.quantisation.asks_for(scale_use(scale)) for scale in names),
        )
        for fault, names in faults.items()
        if names
    )


def _group_by_end(names: Mapping[str, object]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_split(scale_key(name))[1].rpartition(".")[2]].append(name)
    return groups


def _list_asked(side: TensorFiles) -> Iterator[str]:
    """Yield scales of which a checkpoint's config says that it has some, and it has none."""
    quantisation = side.quantisation
    uses = {scale_use(name) for name in side.activation_scales}
    if "cache" not in uses and quantisation.asks_for("cache"):
        for name in side.tensors:
            if name.endswith(_CODES) and not any(part in name for part in _NO_CACHE):
                attention = name[: name.rindex(".k_proj.")]
                yield from (f"{attention}.{kind}_scale" for kind in "kv")
    if "input" not in uses and quantisation.asks_for("input"):
        for name, tensor in side.tensors.items():
            if tensor.parts and not tensor.fault:
                yield f"{name.removesuffix('.weight')}.input_scale"


def name_scale_differences(
    pairs: Sequence[StoredPair], deltas: Mapping[str, TensorDelta]
) -> dict[str, Likeness | None]:
    """Return what scales that differ look like: never calibrated, those of another name, or times a
    factor that several have. Of a single number any other is a factor, which says nothing."""
    values = {pair.name: (_read(pair.base), _read(pair.candidate)) for pair in pairs}
    places = Counter(_bytes(held) for held, _ in values.values())
    owners = {_bytes(held): name for name, (held, _) in values.items()}
    beyond = [pair.name for pair in pairs if deltas[pair.name].state == "beyond"]
    factors = Counter(like.words for name in beyond if (like := deltas[name].likeness) is not None)
    likenesses: dict[str, Likeness | None] = {}
    for name in beyond:
        held, candidate = values[name]
        if held is None or candidate is None:
            continue
        own, fault, detail = deltas[name].likeness, None, ""
        owner = owners.get(_bytes(candidate)) if places[_bytes(candidate)] == 1 else None
        if _is_one(candidate) and not _is_one(held):
            fault, detail = _NEVER, "all exactly 1.0"
        elif _is_one(held):
            fault, detail = _NEVER, "the base's, all exactly 1.0"
        elif owner is not None and owner != name:
            fault, detail = _SWAPPED, f"it is {owner}"
        if fault is not None:
            likenesses[name] = Likeness(kind="structure", name=fault, fault=fault, detail=detail)
        else:
            shared = own is not None and factors[own.words] > 1
            likenesses[name] = replace(own, rule="") if own is not None and shared else None
    return likenesses


def _read(tensor: StoredTensor) -> np.ndarray | None:
    """A scale's values; None where they cannot be read, which its comparison says."""
    if tensor.fault or math.prod(tensor.shape) > _MOST_READ:
        return None
    try:
        return tensor.read().astype(np.float64)
    except EvaluationError:
        return None


def _is_one(values: np.ndarray) -> bool:
    return bool(values.size and (values == 1.0).all())


def _bytes(values: np.ndarray | None) -> bytes:
    return b"" if values is None else values.tobytes()
