"""Settings that take a part of the model from the base: one for each layer, or module of a layer.

Each is a ``module:`` target, with the base (its own settings included) as reference and null as
candidate: where settings were declared they stay as they are, and are not searched.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evalguard.bisect.bisect_report import TracedPlace
from evalguard.bisect.settings.hf_side import HFSide, describe_module_source, note_mixed_code
from evalguard.bisect.settings.weight_names import WeightCause
from evalguard.bisect.settings.weight_settings import find_causes
from evalguard.comparison.stored_run import TRACE_FILE
from evalguard.conversion.name_patterns import Covering, compile_glob, matching
from evalguard.conversion.taken_parts import explain_misfit
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.config_overrides import compare_configs

if TYPE_CHECKING:
    import torch

ModuleLevel = Literal["layers", "modules"]
# What a module is without the modules inside it: its own code, attributes and tensors.
OWN = ".own"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSettings:
    """A candidate with a setting for each part of it.

    Attributes:
        variant: the candidate, with all of its parts as they are.
        groups: setting -> finer ones that say the same together: a layer -> its modules and its
            own code, a module -> its inner modules and its own code.
        notes: what lies outside of all parts.
    """

    variant: Variant
    groups: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def derive_module_settings(base: Variant, candidate: Variant, level: ModuleLevel) -> ModuleSettings:
    """Derive settings that take the parts of a model from the base; no weights are read.

    Parts are every decoder layer (or the modules inside each), and what stands beside the layers:
    embeddings, rotary module, final norm, head, and the own code of the modules around. All of
    them together are the base's model, but for the code of the outermost module.

    Raises:
        UsageError: the base's modules cannot be taken into this candidate.
        EvaluationError: a model that is not there, or whose modules cannot be listed.
    """
    value = describe_module_source(base, candidate)
    sides = HFSide.of(base), None if candidate.build is not None else HFSide.of(candidate)
    model = sides[0].model
    if model is None:
        raise EvaluationError(
            f"the layers of '{base.name}' cannot be listed: {sides[0].why_no_model}",
            hint="search settings: --over settings",
        )
    theirs = None if sides[1] is None or sides[1].model is None else sides[1].model
    parts = ModelParts.of(model, theirs)
    derivation = _Derivation(
        value=value, taken=frozenset(setting.name for setting in candidate.settings)
    )
    settings = derivation.settings(parts, level)
    if theirs is not None and sides[1] is not None:
        causes = find_causes(sides[0], sides[1])
        # a module of the base comes with the configuration that it was made with
        plain = [cause for cause in causes if not cause.switches]
        settings = derivation.by_cause(settings, plain, theirs)
    if not parts.layers:
        raise UsageError(
            f"no layer of '{base.name}' has a place in '{candidate.name}': "
            f"{'; '.join(parts.notes) or 'neither has layers'}",
            hint="search settings: --over settings",
        )
    held = hold_settings(candidate)
    return ModuleSettings(
        variant=replace(
            held,
            settings=(*held.settings, *settings),
            assignment={**held.assignment, **{setting.name: None for setting in settings}},
            allow_pickle=candidate.allow_pickle or base.allow_pickle,
        ),
        groups=derivation.groups,
        notes=(*parts.notes, *_notes_outside(*sides), *note_mixed_code(base, candidate)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """The modules of a model, as a search takes them apart.

    Attributes:
        layers: names of the decoder layers, in order.
        beside: of what stands beside them.
        around: of the modules that hold layers; the model itself is none of them.
        inside: name -> modules right inside it.
        notes: what the other model lacks, or has beside.
    """

    layers: tuple[str, ...]
    beside: tuple[str, ...]
    around: tuple[str, ...]
    inside: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: torch.nn.Module, other: torch.nn.Module | None = None) -> ModelParts:
        """Take a model apart.

        Args:
            other: the model that takes the parts; only what both have is one.
        """
        modules = dict(model.named_modules(remove_duplicate=False))
        there = None if other is None else dict(other.named_modules(remove_duplicate=False))
        layers: list[str] = []
        beside: list[str] = []
        around: list[str] = []
        for name, kind in _outer_parts(model):
            {"layer": layers, "beside": beside, "around": around}[kind].append(name)
        inside = {
            name: tuple(
                f"{name}.{inner}" for inner, child in module.named_children() if _acts(child)
            )
            for name, module in modules.items()
        }
        if there is None:
            return cls(
                layers=tuple(layers), beside=tuple(beside), around=tuple(around), inside=inside
            )
        lacking = [name for name in (*layers, *beside) if name not in there]
        misfits = {
            name: why
            for name in (*layers, *beside)
            if name in there and (why := explain_misfit(there[name], modules[name]))
        }
        added = [name for name, _ in _outer_parts(other) if name not in modules]  # type: ignore[arg-type]
        same_inside = {
            name: all(
                part in there and not explain_misfit(there[part], modules[part]) for part in inner
            )
            for name, inner in inside.items()
        }
        notes = [
            f"{len(names)} parts are only in the {side}, and stay: {_few(names)}"
            for side, names in (("base", lacking), ("candidate", added))
            if names
        ]
        for why in dict.fromkeys(misfits.values()):
            names = [name for name, other_why in misfits.items() if other_why == why]
            notes.append(f"{_few(names)} of the base {why}; these parts stay")
        staying = {*lacking, *misfits}
        whole = not (staying or added)
        return cls(
            layers=tuple(name for name in layers if name not in staying),
            beside=tuple(name for name in beside if name not in staying),
            around=tuple(name for name in around if name in there and whole),
            inside={name: inner for name, inner in inside.items() if same_inside[name]},
            notes=tuple(notes),
        )


def _outer_parts(
    module: torch.nn.Module, at: str = ""
) -> Iterator[tuple[str, Literal["layer", "beside", "around"]]]:
    """Every part from the outside in: layers are what stands in an outermost list of modules."""
    import torch

    for name, inner in module.named_children():
        path = f"{at}{name}"
        if isinstance(inner, torch.nn.ModuleList):
            yield from ((f"{path}.{number}", "layer") for number in inner._modules)
        elif any(isinstance(descendant, torch.nn.ModuleList) for descendant in inner.modules()):
            yield path, "around"
            yield from _outer_parts(inner, f"{path}.")
        elif _acts(inner):
            yield path, "beside"


def _acts(module: torch.nn.Module) -> bool:
    """Whether a module does something in evaluation."""
    import torch

    idle = (torch.nn.Identity, torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d)
    return not isinstance(module, idle)


def _few(names: Collection[str]) -> str:
    return ", ".join([*names][:3]) + (", ..." if len(names) > 3 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derivation:
    """Makes settings of parts; ``taken``: names that the candidate's own settings have."""

    value: Value
    taken: frozenset[str]
    groups: dict[str, tuple[Setting, ...]] = field(default_factory=dict)

    def settings(self, parts: ModelParts, level: ModuleLevel) -> list[Setting]:
        """Settings of all parts, in the model's order: layers, or the modules in them."""
        settings: list[Setting] = []
        for name in parts.layers:
            layer = self._part(name, parts, deeper=2 if level == "layers" else 1)
            finer = self.groups.pop(layer.name, (layer,)) if level == "modules" else (layer,)
            settings += finer
        beside = [self._part(name, parts, deeper=1) for name in parts.beside]
        return [*settings, *beside, *(self._own(name) for name in parts.around)]

    def by_cause(
        self, settings: list[Setting], causes: Iterable[WeightCause], model: torch.nn.Module
    ) -> list[Setting]:
        """One setting for the modules whose weights differ for one reason, in place of their own.

        What else is in the parts around them stays a setting of each: a module that a setting names
        more closely follows that one.
        """
        modules = list(dict(model.named_modules(remove_duplicate=False)))
        holding = dict.fromkeys(name.rpartition(".")[0] for name in model.state_dict())
        covering = Covering(holding)
        shared, taken = list[Setting](), set[str]()
        for cause in causes:
            wanted = dict.fromkeys(name.rpartition(".")[0] for name in cause.tensors)
            glob = covering.pattern(wanted) if "" not in wanted else ""
            named = set(matching(glob, modules, setting=cause.name)) if glob else set()
            if not named or named & taken:
                continue
            taken |= named
            shared.append(self._setting(cause.name, glob))
        if not shared:
            return settings
        for name, finer in self.groups.items():
            self.groups[name] = tuple(
                setting for setting in finer if setting.target.path not in taken
            )
        return [*shared, *(setting for setting in settings if setting.target.path not in taken)]

    def _part(self, name: str, parts: ModelParts, *, deeper: int) -> Setting:
        """A module's setting, and those of what is inside it, so many levels down."""
        setting = self._setting(name, name)
        inside = parts.inside.get(name, ())
        if deeper and inside:
            inner = [self._part(part, parts, deeper=deeper - 1) for part in inside]
            self.groups[setting.name] = (*inner, self._own(name))
        return setting

    def _own(self, name: str) -> Setting:
        return self._setting(f"{name}{OWN}", name)

    def _setting(self, called: str, module: str) -> Setting:
        return Setting(
            name=f"module.{called}" if called in self.taken else called,
            reference=self.value,
            candidate=None,
            target=Target(kind="module", path=module),
        )


def _notes_outside(base: HFSide, candidate: HFSide | None) -> Iterator[str]:
    """What the base's modules do not bring along."""
    if candidate is None:
        return
    if base.dtype and candidate.dtype and base.dtype != candidate.dtype:
        yield (
            f"dtype is outside of the modules: those of the base ({base.dtype}) are taken in the "
            f"candidate's {candidate.dtype}"
        )
    if type(base.config) is type(candidate.config):
        differing = [
            difference.path for difference in compare_configs(base.config, candidate.config)
        ]
        if differing:
            yield (
                f"configs differ in {_few(differing)}: where the outermost module reads them, that "
                "is outside of the modules"
            )


def take_modules_from(base: Variant, candidate: Variant, modules: Mapping[str, str]) -> Variant:
    """Return a candidate with a setting for each of some modules, all at null: as they are.

    Args:
        modules: name of the setting -> name or glob of the module.

    Raises:
        UsageError: the base's modules cannot be taken.
    """
    value = describe_module_source(base, candidate)
    added = tuple(
        Setting(
            name=name,
            reference=value,
            candidate=None,
            target=Target(kind="module", path=module),
        )
        for name, module in modules.items()
    )
    own = tuple(setting for setting in candidate.settings if setting.name not in modules)
    for setting in candidate.settings:
        if setting.name in modules:
            raise UsageError(
                f"the candidate has a setting of its own that is called '{setting.name}', as the "
                "module is",
                hint="call the setting otherwise",
            )
    values = {**candidate.assignment, **{setting.name: None for setting in added}}
    return replace(candidate, settings=(*own, *added), assignment=values)


def hold_settings(variant: Variant) -> Variant:
    """The variant with its settings held at the values that they have: none is searched."""
    held = tuple(
        replace(setting, reference=variant.assignment.get(setting.name, setting.candidate))
        for setting in variant.settings
    )
    return replace(variant, settings=held)


def drop_idle_modules(variant: Variant, declared: Variant) -> Variant:
    """A variant with the modules that it takes, and without those that it merely could.

    A module that stays, inside one that is taken, is kept: else it would be taken too.

    Args:
        declared: the candidate as it was declared; its own settings are as they were there.
    """
    before = {setting.name: setting for setting in declared.settings}
    added = [setting for setting in variant.settings if setting.name not in before]
    taken = [
        setting.target.path for setting in added if variant.assignment[setting.name] is not None
    ]
    settings = [
        before.get(setting.name, setting)
        for setting in variant.settings
        if setting.name in before
        or variant.assignment[setting.name] is not None
        or any(setting.target.path.startswith(f"{path}.") for path in taken)
    ]
    values = {
        setting.name: variant.assignment.get(setting.name, setting.candidate)
        for setting in settings
    }
    return replace(variant, settings=tuple(settings), assignment=values)


TRACE_SCHEMA = "evalguard.trace/1"
_OF_MODULES = ("module", "weights", "attr", "dtype")
_COMMA = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrace:
    """A trace of two models.

    Attributes:
        ratios: by module, how many times its error is beyond the floor; only those beyond it.
        first: where the error begins; None: nowhere.
    """

    folder: Path
    ratios: Mapping[str, float]
    first: TracedPlace | None


def find_trace(root: Path, base: str, candidate: str) -> FoundTrace | None:
    """Find the newest trace of two models in the run folders below a folder.

    One of older files of theirs will do: a prior is no evidence.

    Returns:
        None where there is none, or none that can be read.
    """
    try:
        folders = sorted((entry for entry in root.iterdir() if entry.is_dir()), reverse=True)
    except OSError:
        return None
    for folder in folders:
        file = folder / TRACE_FILE
        trace = _read_trace(file, base, candidate) if file.is_file() else None
        if trace is not None:
            return trace
    return None


def _read_trace(file: Path, base: str, candidate: str) -> FoundTrace | None:
    """What a file says; None where it is of other models."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        names = (content["base"]["name"], content["candidate"]["name"])
        if content["schema"] != TRACE_SCHEMA or names != (base, candidate):
            return None
        ratios: dict[str, float] = {}
        for suspect in content["suspects"]:
            ratio = suspect["local_ratio"]
            # infinite is null in JSON: beyond any floor
            number = math.inf if ratio is None else float(ratio)
            module = str(suspect["module"])
            ratios[module] = max(number, ratios.get(module, 0.0))
        first = content.get("first")
        first_place = None
        if first is not None:
            module, operation = str(first["module"]), str(first["operation"])
            first_place = TracedPlace(folder=str(file.parent), module=module, operation=operation)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return FoundTrace(folder=file.parent, ratios=ratios, first=first_place)


def weigh_settings(ratios: Mapping[str, float], settings: Iterable[Setting]) -> dict[str, float]:
    """How likely settings are to be culprits, by the modules of a trace that lie in their targets.

    Args:
        ratios: module -> how many times its error is beyond the floor, above 0.

    Returns:
        Setting -> the largest ratio of the modules that it changes; only those with one.
    """
    weights: dict[str, float] = {}
    for setting in settings:
        if setting.target.kind not in _OF_MODULES:
            continue
        patterns = [compile_glob(glob.strip()) for glob in _COMMA.split(setting.target.path)]
        own = setting.name.endswith(OWN)
        for module, ratio in ratios.items():
            names = (module,) if own else tuple(_upwards(module))
            if ratio > 0.0 and any(
                pattern.fullmatch(name) for pattern in patterns for name in names
            ):
                weights[setting.name] = max(ratio, weights.get(setting.name, 0.0))
    return weights


def _upwards(name: str) -> Iterator[str]:
    """A dotted name and those of all that it is in."""
    while name:
        yield name
        name = name.rpartition(".")[0]
