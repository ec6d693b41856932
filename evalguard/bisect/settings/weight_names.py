"""Weights that differ in one way, and what people call them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from evalguard.models.unloaded_models import WEIGHT_KINDS, WeightPlace

_FEW, _FEW_LEAVES, _FEW_KINDS, _FEW_LAYERS = 2, 4, 2, 4  # names that are listed; more are counted
_WEIGHT = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCause:
    """Weights that differ in one and the same way.

    Attributes:
        name: what they are called together: "q_proj (all 5, heads permuted)".
        tensors: their names in the model's state, in its order.
        parts: the same, cut by module where modules of several names hold them and each may be
            asked apart; () where not.
        switches: attributes of the configuration that say how these weights are laid out, and
            differ as they do.
    """

    name: str
    tensors: tuple[str, ...]
    parts: tuple[WeightCause, ...] = ()
    switches: tuple[str, ...] = ()


def build_cause(
    words: str,
    tensors: Collection[str],
    places: Mapping[str, WeightPlace],
    parts: Iterable[WeightCause] = (),
) -> WeightCause:
    name = name_weights(tensors, places, words)
    return WeightCause(name=name, tensors=tuple(tensors), parts=tuple(parts))


def cut_by_module(
    tensors: Collection[str], places: Mapping[str, WeightPlace]
) -> tuple[tuple[str, ...], ...]:
    """Cut tensors by the names of their modules (q_proj, o_proj); () where there is only one."""
    cut: dict[str, list[str]] = defaultdict(list)
    for name in tensors:
        cut[name_tensor(name, places)].append(name)
    return tuple(map(tuple, cut.values())) if len(cut) > 1 else ()


def name_weights(
    tensors: Collection[str], places: Mapping[str, WeightPlace], difference: str = ""
) -> str:
    """What some weights are called together: "q_proj (all 5, heads permuted)"."""
    subject, many = _subject(tensors, places)
    details = ", ".join(part for part in (many, difference) if part)
    return f"{subject} ({details})" if details else subject


def _subject(tensors: Collection[str], places: Mapping[str, WeightPlace]) -> tuple[str, str]:
    """What they are called, and how many they are where that does not say it."""
    modules = list(dict.fromkeys(places[name].module for name in tensors))
    named = _Names(tensors, places)
    own = list(dict.fromkeys(named.of(name) for name in tensors))
    layers = list(dict.fromkeys(places[name].layer for name in tensors))
    if len(modules) == 1:
        leaves = named.leaves(next(iter(tensors)))
        if not modules[0] or not leaves:
            return modules[0] or own[0], ""
        return ", ".join(f"{modules[0]}.{leaf}" for leaf in leaves), ""
    total = len({place.layer for place in places.values()} - {None})
    if len(own) > _FEW and None not in layers and _are_whole(layers, tensors, places):
        if len(layers) == total:
            return "all layers", ""
        if len(layers) <= _FEW_LAYERS:
            return ", ".join(f"layers.{layer}" for layer in layers), ""
        return f"{len(layers)} layers", ""
    kinds = {places[name].kind for name in tensors}
    if len(own) <= _FEW or (len(own) <= _FEW_LEAVES and named.are_leaves):
        subject, alike = ", ".join(own), [n for n in places if named.of(n) in own]
    elif len(kinds) <= _FEW_KINDS:
        parameters = {_leaf(n, places) for n in tensors}
        subject = ", ".join(kind for kind in WEIGHT_KINDS if kind in kinds)
        alike = [n for n in places if places[n].kind in kinds and _leaf(n, places) in parameters]
    else:
        subject, alike = "tensors", list(places)
    if len(tensors) == len(alike):
        return subject, f"all {len(tensors)}"
    if None not in layers and len(layers) <= _FEW_LAYERS and len(layers) < total:
        *earlier, last = map(str, layers)
        return subject, f"layers {', '.join(earlier)} and {last}" if earlier else f"layer {last}"
    return subject, f"{len(tensors)} of {len(alike)}"


class _Names:
    """Names of tensors among some: of its module, and which of it where that is not its weight.

    "mixer.dt_bias" is one parameter of a module that has several, and no "mixer"; "mixer.norm" is
    one of several modules of a name.
    """

    def __init__(self, tensors: Collection[str], places: Mapping[str, WeightPlace]) -> None:
        self._places = places
        self._leaves: dict[str, set[str]] = defaultdict(set)
        self._all: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, set[str]] = defaultdict(set)
        asked: dict[str, set[str]] = defaultdict(set)
        for name in places:
            module = name_tensor(name, places)
            self._all[module].add(_leaf(name, places))
            self._paths[module].add(_path(name, places))
        for name in tensors:
            module = name_tensor(name, places)
            self._leaves[module].add(_leaf(name, places))
            asked[module].add(_path(name, places))
        # of several modules of a name, all of which are meant, none need be told from the others
        self._shared = {
            module
            for module, paths in self._paths.items()
            if len(paths) > 1 and asked.get(module, paths) != paths
        }

    @property
    def are_leaves(self) -> bool:
        """Whether each is called by a parameter."""
        return all(len(of) == 1 and of != {_WEIGHT} for of in self._leaves.values())

    def of(self, tensor: str) -> str:
        """The name of a tensor; of another than those, too."""
        module, leaf = name_tensor(tensor, self._places), _leaf(tensor, self._places)
        whole = self._stands_for_all(module)
        if module in self._shared:
            module = ".".join(_path(tensor, self._places).split(".")[-2:])
        return module if whole or leaf in ("", _WEIGHT) else f"{module}.{leaf}"

    def leaves(self, tensor: str) -> list[str]:
        """Which parameters of a tensor's module are among those; [] where they stand for it."""
        module = name_tensor(tensor, self._places)
        own = self._leaves[module]
        return [] if _WEIGHT in own or self._stands_for_all(module) else sorted(own)

    def _stands_for_all(self, module: str) -> bool:
        """Whether several of a module's parameters are meant: its weight with others, or each."""
        own = self._leaves.get(module, set())
        return len(own) > 1 and (_WEIGHT in own or own == self._all[module])


def _path(tensor: str, places: Mapping[str, WeightPlace]) -> str:
    """Its module's name without numbers."""
    return ".".join(part for part in places[tensor].module.split(".") if not part.isdigit())


def _leaf(tensor: str, places: Mapping[str, WeightPlace]) -> str:
    """Which parameter of its module it is; "" of a model's own."""
    module = places[tensor].module
    return tensor.removeprefix(f"{module}.") if module else ""


def _are_whole(
    layers: Collection[int | None], tensors: Collection[str], places: Mapping[str, WeightPlace]
) -> bool:
    """Whether these are what their layers are of: of each kind but norms all weights, at least.

    A rounding leaves norms as they are, and biases.
    """
    inside = [n for n in places if places[n].layer in layers and places[n].kind != "norms"]
    weights = [n for n in inside if _leaf(n, places) == _WEIGHT]
    return {*tensors}.issuperset(weights or inside)


def name_tensor(tensor: str, places: Mapping[str, WeightPlace]) -> str:
    """The last part of its module's name that is no number."""
    parts = [part for part in places[tensor].module.split(".") if part and not part.isdigit()]
    return parts[-1] if parts else tensor.rpartition(".")[2]
