"""Settings from the weights of two models: by kind, by layer, by module, or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.bisect.settings.config_settings import argument_setting
from evalguard.bisect.settings.hf_side import HFSide, describe_module_source, note_mixed_code
from evalguard.bisect.settings.quantised_modules import find_differing_modules
from evalguard.bisect.settings.weight_causes import find_quantised_causes, find_weight_causes
from evalguard.bisect.settings.weight_names import WeightCause
from evalguard.conversion.name_patterns import Covering
from evalguard.core.settings import Setting, Target, TargetKind, Value
from evalguard.errors import SettingError, UsageError
from evalguard.models.checkpoint_files import open_stored_tensors
from evalguard.models.checkpoint_tensors import map_loading_names, map_tied_names
from evalguard.models.config_overrides import compare_configs
from evalguard.models.hyperparameters_read import read_named_values
from evalguard.models.unloaded_models import (
    WEIGHT_KINDS,
    CheckpointComparison,
    WeightPlace,
    compare_checkpoints,
    compare_shapes,
    locate_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedWeights:
    """Settings for weights; ``groups`` as of ``Derived``; ``whole``: one for the checkpoint.

    ``switches``: attribute of the configuration -> the setting of the weights that it goes with.
    """

    settings: list[Setting] = field(default_factory=list)
    groups: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    whole: bool = False
    complete: bool = True
    switches: Mapping[str, str] = field(default_factory=dict)


def weight_settings(base: HFSide, candidate: HFSide) -> DerivedWeights:
    """Return settings for all weights that differ.

    In groups where the two models have the same modules: of tensors, or of modules where weights
    are quantised. Else one setting that takes the base's whole checkpoint, with a note that says
    why.
    """
    if _checkpoint_place(base) == _checkpoint_place(candidate):
        return DerivedWeights(notes=["weights: both models have the same checkpoint"])
    packed = base.quantisation or candidate.quantisation
    name, why = _why_whole(base, candidate)
    if not why:
        return (_packed_settings if packed else _grouped_settings)(base, candidate)
    if packed:
        why = f"weights are quantised, and {why}"
    return _whole_checkpoint(base, candidate, "quantization" if packed else name, why)


def _checkpoint_place(side: HFSide) -> tuple[Any, ...]:
    given = side.model_args
    location = (given["pretrained"], given.get("revision") or "main", given.get("subfolder") or "")
    return (*location, given.get("gguf_file"))


def _why_whole(base: HFSide, candidate: HFSide) -> tuple[str, str]:
    """The name of a setting for the whole checkpoint, and why there are no groups; "" if not."""
    for side in (base, candidate):
        if side.other_weights:
            return "weights", f"model_args.{side.other_weights} changes weights as they are loaded"
        if side.model is None:
            return "model", side.why_no_model
        if side.files is None and not side.model_args.get("gguf_file"):
            return "weights", side.why_no_files
    if type(base.model) is not type(candidate.model):
        kinds = [type(side.model).__name__ for side in (base, candidate)]
        return "model", f"the architectures differ ({kinds[0]}, {kinds[1]})"
    assert base.model is not None
    assert candidate.model is not None
    shapes = compare_shapes(base.model, candidate.model)
    if shapes:
        shown = "; ".join(shapes[:3]) + ("; ..." if len(shapes) > 3 else "")
        return "model", f"{len(shapes)} tensors have other names or shapes ({shown})"
    if base.quantisation and base.quantisation != candidate.quantisation:
        return "quantization", "the base is quantised in a way of its own"
    return "", ""


def _whole_checkpoint(base: HFSide, candidate: HFSide, name: str, why: str) -> DerivedWeights:
    note = f"{name}: one setting for the whole checkpoint, because {why}"
    if name == "model":
        note += "; to look inside, declare settings of the candidate in a guard file"
    for argument_name in ("revision", "subfolder", "gguf_file"):
        base_value, other_value = (
            side.model_args.get(argument_name) or "" for side in (base, candidate)
        )
        if base_value != other_value:
            note = f"{name}: no setting, because {why} and model_args.{argument_name} differs, too"
            return DerivedWeights(notes=[note], complete=False)
    if _trust_differs(base, candidate):
        note = f"{name}: no setting, because {why} and only one of the two may run code of its own"
        return DerivedWeights(notes=[note], complete=False)
    places = (str(side.model_args["pretrained"]) for side in (base, candidate))
    setting = argument_setting("pretrained", *places, called=name)
    return DerivedWeights(settings=[setting], notes=[note], whole=True)


def _trust_differs(base: HFSide, candidate: HFSide) -> bool:
    """Whether the base's files bring code and would be loaded with another leave to run it."""
    own_code = bool(getattr(base.config, "auto_map", None))
    return own_code and candidate.variant.trust_remote_code != base.variant.trust_remote_code


def _grouped_settings(base: HFSide, candidate: HFSide) -> DerivedWeights:
    model = candidate.model
    assert model is not None
    if base.files is None:  # a gguf file, which transformers reads as a whole
        note = f"weights: no setting, because {base.why_no_files} of the base"
        return DerivedWeights(notes=[note], complete=False)
    notes: list[str] = []
    if candidate.files is None:
        comparison = CheckpointComparison(differing=_all_stored(base))
        notes.append(f"weights: not compared, because {candidate.why_no_files} of the candidate")
    else:
        comparison = _compare_stored(base, candidate)
    if comparison.unmatched:
        few = ", ".join(comparison.unmatched[:3]) + (
            ", ..." if len(comparison.unmatched) > 3 else ""
        )
        why = (
            f"{len(comparison.unmatched)} tensors are stored in one of the checkpoints only ({few})"
        )
        return _whole_checkpoint(base, candidate, "weights", why)
    if comparison.same:
        notes.append(
            f"weights: {len(comparison.same)} tensors are the same in both and were left out"
        )
    groups = _Groups.of(locate_weights(model), base.checkpoint)
    causes = find_causes(base, candidate, comparison.differing)
    caused = {name for cause in causes for name in cause.tensors}
    unlike = [name for name in comparison.differing if name not in caused]
    caused_by = groups.by_cause(causes)
    switches = {
        switch: setting.name
        for cause, setting in zip(causes, caused_by, strict=True)
        for switch in cause.switches
    }
    settings = [*caused_by, *groups.coarsest(unlike)]
    return DerivedWeights(settings=settings, groups=groups.finer, notes=notes, switches=switches)


def _packed_settings(base: HFSide, candidate: HFSide) -> DerivedWeights:
    """Settings that take modules of the base, with whatever packing they have."""
    model = candidate.model
    assert model is not None
    try:
        source = describe_module_source(base.variant, candidate.variant)
    except (UsageError, SettingError) as error:
        return _whole_checkpoint(base, candidate, "quantization", str(error))
    places = locate_weights(model)
    by_module = {place.module: place for place in reversed(places.values())}
    differing = find_differing_modules(base, candidate)
    if not differing or "" in differing:
        why = "it is not known which modules differ" if not differing else "the model holds tensors"
        return _whole_checkpoint(base, candidate, "quantization", why)
    groups = _Groups.of_modules(by_module, [name for name, _ in model.named_modules()], source)
    causes = [
        WeightCause(
            name=cause.name,
            tensors=tuple(dict.fromkeys(places[name].module for name in cause.tensors)),
        )
        for cause in _find_packed_causes(base, candidate, differing)
    ]
    caused = {name for cause in causes for name in cause.tensors}
    settings = [
        *groups.by_cause(causes),
        *groups.coarsest([name for name in differing if name not in caused]),
    ]
    notes = [
        f"weights: quantised, so {len(differing)} of {len(by_module)} modules are exchanged "
        "whole, with their scales",
        *note_mixed_code(base.variant, candidate.variant),
    ]
    same_dtype = base.dtype == candidate.dtype
    return DerivedWeights(settings=settings, groups=groups.finer, notes=notes, complete=same_dtype)


def _find_packed_causes(
    base: HFSide, candidate: HFSide, modules: Collection[str]
) -> tuple[WeightCause, ...]:
    """What else than a rounding changed weights of these modules in the same way."""
    if base.model is None or base.files is None or candidate.files is None:
        return ()
    tensors = [n for n, place in locate_weights(base.model).items() if place.module in modules]
    folder = candidate.files.files[0].parent
    return find_quantised_causes(base.model, base.files, folder, tensors)


def _compare_stored(base: HFSide, candidate: HFSide) -> CheckpointComparison:
    assert candidate.model is not None
    assert base.files is not None
    assert candidate.files is not None
    dtypes = {side.dtype or "float32" for side in (base, candidate)}
    return compare_checkpoints(candidate.model, base.files, candidate.files, sorted(dtypes))


def find_causes(
    base: HFSide, candidate: HFSide, differing: Sequence[str] | None = None
) -> tuple[WeightCause, ...]:
    """Group the weights that differ in the same way; () where they cannot be compared.

    Args:
        differing: names of those that differ; None: to be found.
    """
    if candidate.model is None or base.files is None:
        return ()
    if candidate.files is None:
        given = candidate.model_args
        file = Path(str(given["pretrained"])) / str(given.get("gguf_file") or "")
        if differing is None or not file.is_file():
            return ()
        return find_quantised_causes(candidate.model, base.files, file, differing)
    if differing is None:
        if (
            _checkpoint_place(base) == _checkpoint_place(candidate)
            or _why_whole(base, candidate)[0]
        ):
            return ()
        if base.quantisation or candidate.quantisation:
            modules = find_differing_modules(base, candidate)
            return _find_packed_causes(base, candidate, modules)
        comparison = _compare_stored(base, candidate)
        if comparison.unmatched:
            return ()
        differing = comparison.differing
    switches = _find_rotary_switches(base, candidate)
    return find_weight_causes(candidate.model, base.files, candidate.files, differing, switches)


def _find_rotary_switches(base: HFSide, candidate: HFSide) -> dict[str, str]:
    """Attributes that differ and say how rotary pairs stand -> the order that the candidate's have,
    as a name map has it."""
    switches = {}
    for difference in compare_configs(base.config, candidate.config):
        for value in read_named_values({difference.path: difference.candidate}, prefix=""):
            if value.name == "rope_interleaved":
                switches[difference.path] = "interleaved" if value.value else "halves"
    return switches


def _all_stored(side: HFSide) -> tuple[str, ...]:
    assert side.model is not None
    assert side.files is not None
    with ExitStack() as stack:
        loaded = map_loading_names(side.model, open_stored_tensors(side.files, stack))
    names = dict.fromkeys(name for into in loaded.values() for name in into.names)
    tied = map_tied_names(side.model)
    # a GGUF file's output layer may be another one than its embedding
    return (
        *names,
        *(name for name, original in tied.items() if original in names and name not in names),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Cuts tensors into groups: kinds, the layers of a kind, the modules of a layer's kind.

    Where few layers differ, these come first: layers, the kinds of a layer. What is cut may be
    modules in place of tensors, each with its place.
    """

    places: Mapping[str, WeightPlace]
    kind: TargetKind
    reference: Value
    covering: Covering
    holding: frozenset[str] = frozenset()  # modules that hold other modules with tensors
    finer: dict[str, tuple[Setting, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Mapping[str, WeightPlace], checkpoint: str) -> _Groups:
        modules = {place.module for place in places.values()}
        above = {name[:at] for name in modules for at, part in enumerate(name) if part == "."}
        return cls(
            places=places,
            kind="weights",
            reference=checkpoint,
            covering=Covering(places),
            holding=frozenset(modules & above),
        )

    @classmethod
    def of_modules(
        cls, places: Mapping[str, WeightPlace], every: Collection[str], source: Value
    ) -> _Groups:
        """The same of modules; ``every``: names of all, of which a pattern must hit no other."""
        return cls(places=places, kind="module", reference=source, covering=Covering(every))

    def coarsest(self, tensors: Sequence[str]) -> list[Setting]:
        """The fewest groups that say what differs: kinds, or the few layers that differ at all."""
        inside = [tensor for tensor in tensors if self.places[tensor].layer is not None]
        layers = {self.places[tensor].layer for tensor in inside}
        kinds = {self.places[tensor].kind for tensor in inside}
        total = len({place.layer for place in self.places.values()} - {None})
        if not inside or len(layers) >= min(total, len(kinds)):
            return self.by_kind(tensors)
        outside = [tensor for tensor in tensors if self.places[tensor].layer is None]
        return [*self.by_kind(outside), *self._by_whole_layer(inside)]

    def by_cause(self, causes: Sequence[WeightCause]) -> list[Setting]:
        """One setting for all that differs for one reason; inside, what different modules hold."""
        settings = []
        for cause in causes:
            same = sum(earlier.name == cause.name for earlier in causes[: causes.index(cause)])
            name = f"weights.{cause.name}{f' {same + 1}' if same else ''}"
            setting = self._setting(name, [*cause.tensors])
            if cause.parts:
                self.finer[setting.name] = tuple(
                    self._setting(f"weights.{part.name}", [*part.tensors]) for part in cause.parts
                )
            settings.append(setting)
        return settings

    def by_kind(self, tensors: Iterable[str]) -> list[Setting]:
        parts = _cut_tensors(tensors, lambda tensor: self.places[tensor].kind)
        ordered = [kind for kind in WEIGHT_KINDS if kind in parts]
        return [
            self._setting(f"weights.{kind}", parts[kind], lambda names: self._by_layer(names))
            for kind in ordered
        ]

    def _by_whole_layer(self, tensors: list[str]) -> list[Setting]:
        parts = _cut_tensors(tensors, lambda tensor: f"weights.layers.{self.places[tensor].layer}")
        return [
            self._setting(name, inside, lambda names: self._by_layer(names))
            for name, inside in parts.items()
        ]

    def _by_layer(self, tensors: list[str]) -> list[Setting]:
        parts = _cut_tensors(tensors, self._layer_name)
        return [
            self._setting(name, inside, lambda names: self._by_module(names))
            for name, inside in parts.items()
        ]

    def _by_module(self, tensors: list[str]) -> list[Setting]:
        parts = _cut_tensors(tensors, self._module_name)
        return [self._setting(name, inside) for name, inside in parts.items()]

    def _layer_name(self, tensor: str) -> str:
        place = self.places[tensor]
        if place.layer is None:
            return self._module_name(tensor)
        return f"weights.layers.{place.layer}.{place.kind}"

    def _module_name(self, tensor: str) -> str:
        """A module, or the tensor itself where modules stand beside it (a mixer's own)."""
        module = self.places[tensor].module
        alone = module and module not in self.holding
        return f"weights.{module if alone else tensor}"

    def _setting(
        self,
        name: str,
        tensors: list[str],
        finer: Callable[[list[str]], list[Setting]] | None = None,
    ) -> Setting:
        inner = finer(tensors) if finer else []
        if len(inner) == 1 and self._is_part(tensors):
            return inner[0]  # the narrowest name that is true: one layer, or one module
        if len(inner) > 1:
            self.finer[name] = tuple(inner)
        target = Target(kind=self.kind, path=self.covering.pattern(tensors))
        return Setting(name=name, reference=self.reference, candidate=None, target=target)

    def _is_part(self, tensors: list[str]) -> bool:
        """Whether these lie in a layer, or their kind has other modules that do not differ."""
        place = self.places[tensors[0]]
        alike = {peer.module for peer in self.places.values() if peer.kind == place.kind}
        return place.layer is not None or len(alike) > 1


def _cut_tensors(tensors: Iterable[str], name_of: Callable[[str], str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for tensor in tensors:
        parts.setdefault(name_of(tensor), []).append(tensor)
    return parts
