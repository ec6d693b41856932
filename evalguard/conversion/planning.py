"""What has to be done to a model so that it carries a variant's assignment; pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.errors import SettingError

BUILD_PLACEHOLDER = "{build}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeEdit:
    """``attr:GLOB.X``: set ``attribute`` to ``value`` on every module that ``glob`` names."""

    setting: str
    glob: str
    attribute: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeEdit:
    """``dtype:GLOB``: hold and compute every module that ``glob`` names in ``dtype``."""

    setting: str
    glob: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsEdit:
    """``weights:GLOB``: take the tensors that ``glob`` names from ``checkpoint``.

    A folder, a hub id or ``owner/name@revision``; None: they stay as they were loaded.
    """

    setting: str
    glob: str
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEdit:
    """``module:GLOB``: take the modules that ``glob`` names, code and all, from ``source``.

    A model as it is to be loaded, with its own settings; None: the modules stay.
    """

    setting: str
    glob: str
    value: Value
    source: Variant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """``call:WHERE``: call the user's function with the loaded model and ``value``."""

    setting: str
    function: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan:
    """Everything that turns a variant and its assignment into a loaded model.

    Attributes:
        model_args: the variant's model_args with its ``model_args.X`` settings laid over them.
        config_overrides: dotted path in the Hugging Face config -> value.
        weights, attributes, dtypes, calls, modules: edits of the loaded model, in the order of
            declaration.
        generation: setting name -> (attribute of the generation config, value).
        env: environment variables that must be set before any import; None means "must be unset".
        build_inputs: inputs of the build recipe, the ``build.X`` settings laid over the fixed ones.
        serve_flags: flags of the server that evalguard starts, and their values.
        serve_env: changes to that server's environment.
        packages: version of each package of the model's own environment that a setting names.
        targets: setting name -> (target, value), for reading back.
    """

    model_args: Mapping[str, Value]
    config_overrides: Mapping[str, Value] = field(default_factory=dict)
    weights: tuple[WeightsEdit, ...] = ()
    attributes: tuple[AttributeEdit, ...] = ()
    dtypes: tuple[DtypeEdit, ...] = ()
    calls: tuple[HookCall, ...] = ()
    modules: tuple[ModuleEdit, ...] = ()
    generation: Mapping[str, tuple[str, Value]] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    build_inputs: Mapping[str, Value] = field(default_factory=dict)
    serve_flags: Mapping[str, Value] = field(default_factory=dict)
    serve_env: Mapping[str, str | None] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, tuple[Target, Value]] = field(default_factory=dict)

    def settings_for_identity(self, effective: Mapping[str, Value]) -> list[Value]:
        """What settings did: of each its target, the value asked for, and the one read back.

        What they are called says nothing of a model, nor does their order, but for that of hooks:
        of two others that reach one place, one is seen not to have taken.

        Args:
            effective: values read back, by name.
        """
        entries = [
            (t, [str(t), value, effective[name]]) for name, (t, value) in self.targets.items()
        ]
        hooks: list[Value] = [entry for target, entry in entries if target.kind == "call"]
        plain = [entry for target, entry in entries if target.kind != "call"]
        return [*sorted(plain, key=lambda entry: str(entry[0])), *hooks]

    @property
    def needs_worker(self) -> bool:
        """Whether the model needs a process of its own.

        Libraries read their environment when they are imported; and a hook may patch a library,
        which would change every model that this process loads later.
        """
        return bool(self.env or self.calls)

    @property
    def edits_model(self) -> bool:
        """Whether the loaded torch model has to be edited."""
        edits = (self.weights, self.attributes, self.dtypes, self.calls, self.modules)
        return any(edits) or bool(self.generation)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The other checkpoints that weights and modules are taken from, each once."""
        taken = {edit.checkpoint for edit in self.weights if edit.checkpoint is not None}
        for source in self.module_sources:
            inner = plan_conversion(source)
            taken |= {_checkpoint_of(inner.model_args), *inner.checkpoints}
        return tuple(sorted(taken))

    @property
    def module_sources(self) -> tuple[Variant, ...]:
        """The models that modules are taken from, each once."""
        sources = (edit.source for edit in self.modules)
        return tuple({source.digest: source for source in sources if source is not None}.values())


def plan_conversion(variant: Variant) -> ConversionPlan:
    """Sort a variant's settings by target, with the values they have in its assignment.

    Raises:
        SettingError: two settings write the same place, a build input that the recipe never
            reads, a dtype or checkpoint that is no name, an environment value that is not a scalar.
    """
    targets = {
        setting.name: (setting.target, variant.assignment.get(setting.name, setting.candidate))
        for setting in variant.settings
    }
    _refuse_shared_targets(variant.settings)
    by_path = {
        kind: {t.path: v for t, v in targets.values() if t.kind == kind}
        for kind in ("model_args", "config", "build")
    }
    return ConversionPlan(
        model_args={**variant.model_args, **by_path["model_args"]},
        config_overrides=by_path["config"],
        weights=tuple(
            WeightsEdit(setting=name, glob=t.path, checkpoint=_checkpoint_name(name, v))
            for name, (t, v) in targets.items()
            if t.kind == "weights"
        ),
        attributes=tuple(
            AttributeEdit(setting=name, glob=t.path, attribute=t.attribute, value=v)
            for name, (t, v) in targets.items()
            if t.kind == "attr"
        ),
        dtypes=tuple(
            DtypeEdit(setting=name, glob=t.path, dtype=_dtype_name(name, v))
            for name, (t, v) in targets.items()
            if t.kind == "dtype"
        ),
        modules=tuple(
            ModuleEdit(setting=name, glob=t.path, value=v, source=read_module_source(name, v))
            for name, (t, v) in targets.items()
            if t.kind == "module"
        ),
        generation={n: (t.path, v) for n, (t, v) in targets.items() if t.kind == "generation"},
        calls=tuple(
            HookCall(setting=name, function=t.path, value=v)
            for name, (t, v) in targets.items()
            if t.kind == "call"
        ),
        env={t.path: _environment_text(n, v) for n, (t, v) in targets.items() if t.kind == "env"},
        build_inputs=_build_inputs(variant, by_path["build"]),
        **_server_changes(variant, targets),
        packages=_package_versions(variant, targets),
        targets=targets,
    )


def with_build(model_args: Mapping[str, Value], built: str) -> dict[str, Value]:
    """Put the built path where ``{build}`` stands in the model_args, else into ``pretrained``."""
    replaced = {
        name: value.replace(BUILD_PLACEHOLDER, built) if isinstance(value, str) else value
        for name, value in model_args.items()
    }
    if replaced == dict(model_args):
        replaced["pretrained"] = built
    return replaced


def _refuse_shared_targets(settings: tuple[Setting, ...]) -> None:
    seen: list[Setting] = []
    for setting in settings:
        # a hook may serve two settings with two values; every other place holds one value only
        if setting.target.kind == "call":
            continue
        first = next((earlier for earlier in seen if earlier.target.overlaps(setting.target)), None)
        if first is not None:
            raise SettingError(
                f"settings '{first.name}' and '{setting.name}' both write {setting.target}",
                hint="keep one of them, or let them write different places",
            )
        seen.append(setting)


def _dtype_name(setting: str, value: Value) -> str:
    if not isinstance(value, str):
        raise SettingError(
            f"setting '{setting}': {value!r} is not a dtype",
            hint="write a torch dtype by name, e.g. float32 or bfloat16",
            setting=setting,
        )
    return value


def _checkpoint_name(setting: str, value: Value) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise SettingError(
            f"setting '{setting}': {value!r} is not a checkpoint",
            hint="write a model folder or a hub id, or null for the weights as they were loaded",
            setting=setting,
        )
    return value


# Targets of a model that modules are taken from: what loading and editing it in place needs. What
# needs a process, a recipe or code of its own is not taken along.
MODULE_SOURCE_KINDS = ("model_args", "config", "attr", "dtype", "weights")
_NOT_PLAIN = ("peft", "delta", "autogptq", "gptqmodel")


def read_module_source(setting: str, value: Value) -> Variant | None:
    """Read the value of a ``module:`` setting as the model that it names.

    Args:
        value: a folder, hub id or ``owner/name@revision``; or ``{"model_args": {...}, "settings":
            {TARGET: VALUE}}``, a model with settings of its own; None: no other model.

    Raises:
        SettingError: it is none of these, or its settings cannot be taken along.
    """
    if value is None:
        return None
    if isinstance(value, str) and value:
        name, _, revision = (
            value.partition("@") if not value.startswith(_PATHS) else (value, "", "")
        )
        value = {"model_args": {"pretrained": name, **({"revision": revision} if revision else {})}}
    arguments = value.get("model_args") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(arguments, dict):
        raise _no_model(setting, value)
    edits = value.get("settings", {})
    pretrained = arguments.get("pretrained")
    if value.keys() - {"model_args", "settings"} or not isinstance(edits, dict):
        raise _no_model(setting, value)
    if not isinstance(pretrained, str) or not pretrained:
        raise _no_model(setting, value)
    settings = tuple(
        Setting(name=text, reference=edit, candidate=edit, target=_source_target(setting, text))
        for text, edit in edits.items()
    )
    for name in _NOT_PLAIN:
        if arguments.get(name):
            raise SettingError(
                f"setting '{setting}': modules cannot be taken from a model with model_args.{name}",
                hint="save the model that it makes, and name that",
                setting=setting,
            )
    return Variant(name=pretrained, model="hf", model_args=arguments, settings=settings)


_PATHS = ("/", "./", "../", "~")


def _source_target(setting: str, text: str) -> Target:
    target = Target.parse(text)
    if target.kind not in MODULE_SOURCE_KINDS:
        raise SettingError(
            f"setting '{setting}': {text} of the model that modules are taken from cannot be taken "
            "along",
            hint=f"its settings may be {', '.join(MODULE_SOURCE_KINDS)}",
            setting=setting,
        )
    return target


def _no_model(setting: str, value: Value) -> SettingError:
    return SettingError(
        f"setting '{setting}': {value!r} is not a model",
        hint="write a model folder or a hub id; {model_args: {pretrained: ...}, settings: "
        "{TARGET: VALUE}} for a model with settings; or null for the modules as they were loaded",
        setting=setting,
    )


def _checkpoint_of(model_args: Mapping[str, Value]) -> str:
    """A model's checkpoint under the name by which its files are found."""
    source, subfolder = str(model_args["pretrained"]), str(model_args.get("subfolder") or "")
    revision = str(model_args.get("revision") or "")
    if subfolder:
        return f"{source}/{subfolder}"
    return f"{source}@{revision}" if revision and revision != "main" else source


def _environment_text(setting: str, value: Value) -> str | None:
    if isinstance(value, (list, dict)):
        raise SettingError(
            f"setting '{setting}': an environment variable cannot hold {value!r}",
            hint="write a string, a number, true, false or null (unset)",
            setting=setting,
        )
    if isinstance(value, bool):
        return "1" if value else "0"
    return None if value is None else str(value)


_OF_ENVIRONMENT = "env."


class _ServerChanges(TypedDict):
    serve_flags: Mapping[str, Value]
    serve_env: Mapping[str, str | None]


def _server_changes(
    variant: Variant, targets: Mapping[str, tuple[Target, Value]]
) -> _ServerChanges:
    flags: dict[str, Value] = {}
    env: dict[str, str | None] = {}
    for name, (target, value) in targets.items():
        if target.kind != "serve":
            continue
        if variant.serve is None:
            raise SettingError(
                f"setting '{name}' is of a server, and evalguard starts none for '{variant.name}'",
                hint="add serve: {command: [...], url: ...} to this model",
                setting=name,
            )
        if target.path.startswith(_OF_ENVIRONMENT):
            env[target.path.removeprefix(_OF_ENVIRONMENT)] = _environment_text(name, value)
        else:
            flags[target.path] = value
    return {"serve_flags": flags, "serve_env": env}


def _package_versions(
    variant: Variant, targets: Mapping[str, tuple[Target, Value]]
) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name, (target, value) in targets.items():
        if target.kind != "package":
            continue
        own = variant.environment
        if own is None or not own.requirements:
            raise SettingError(
                f"setting '{name}' is the version of a package, and '{variant.name}' has no "
                "environment of its own",
                hint=f"add requirements: [{target.path}] to this model",
                setting=name,
            )
        if not isinstance(value, str) or not _VERSION.fullmatch(value):
            raise SettingError(
                f"setting '{name}': {value!r} is not a version",
                hint='write it in quotes: "4.3.0", or with what it needs: "2.3.0 typeguard<3"',
                setting=name,
            )
        versions[target.path] = value
    return versions


# A version, and requirements that go with it.
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*( [A-Za-z0-9][^\s]*)*")


def _build_inputs(variant: Variant, overrides: Mapping[str, Value]) -> dict[str, Value]:
    recipe = variant.build
    if recipe is None:
        if overrides:
            raise SettingError(
                f"'{variant.name}' has settings build.{', build.'.join(overrides)} "
                "but no build recipe",
                hint="add build: to this model, or another target to these settings",
                target=f"build.{next(iter(overrides))}" if len(overrides) == 1 else "",
            )
        return {}
    try:
        return recipe.inputs_with(overrides)
    except SettingError as error:
        raise SettingError(
            f"'{variant.name}': {error}", hint=error.hint, target=error.target
        ) from error
