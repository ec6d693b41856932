"""What has to be done to a model so that it carries a variant's assignment; pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.errors import SettingError, nearest
from evalguard.settings import Setting, Target, Value, Variant

BUILD_PLACEHOLDER = "{build}"
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


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
        weights, attributes, dtypes, calls: edits of the loaded model, in the order of declaration.
        generation: setting name -> (attribute of the generation config, value).
        env: environment variables that must be set before any import; None means "must be unset".
        build_inputs: inputs of the build recipe, the ``build.X`` settings laid over the fixed ones.
        targets: setting name -> (target, value), for reading back.
    """

    model_args: Mapping[str, Value]
    config_overrides: Mapping[str, Value] = field(default_factory=dict)
    weights: tuple[WeightsEdit, ...] = ()
    attributes: tuple[AttributeEdit, ...] = ()
    dtypes: tuple[DtypeEdit, ...] = ()
    calls: tuple[HookCall, ...] = ()
    generation: Mapping[str, tuple[str, Value]] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    build_inputs: Mapping[str, Value] = field(default_factory=dict)
    targets: Mapping[str, tuple[Target, Value]] = field(default_factory=dict)

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
        return bool(self.weights or self.attributes or self.dtypes or self.calls or self.generation)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The other checkpoints that weights are taken from, each once."""
        taken = (edit.checkpoint for edit in self.weights)
        return tuple(sorted({one for one in taken if one is not None}))


def plan(variant: Variant) -> ConversionPlan:
    """Sort a variant's settings by target, with the values they have in its assignment.

    Raises:
        SettingError: two settings write the same place, a build input that the recipe never
            reads, a dtype or checkpoint that is no name, an environment value that is no scalar.
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
        generation={n: (t.path, v) for n, (t, v) in targets.items() if t.kind == "generation"},
        calls=tuple(
            HookCall(setting=name, function=t.path, value=v)
            for name, (t, v) in targets.items()
            if t.kind == "call"
        ),
        env={t.path: _environment_text(n, v) for n, (t, v) in targets.items() if t.kind == "env"},
        build_inputs=_build_inputs(variant, by_path["build"]),
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


def placeholders(command: tuple[str, ...]) -> list[str]:
    """Names in braces in a command's arguments, in order, each once."""
    return list(dict.fromkeys(name for item in command for name in _PLACEHOLDER.findall(item)))


def fill_placeholders(item: str, values: Mapping[str, Value]) -> str:
    """Replace every ``{name}`` of one command argument; names must be in ``values``."""
    return _PLACEHOLDER.sub(lambda match: _as_argument(values[match[1]]), item)


def _as_argument(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _refuse_shared_targets(settings: tuple[Setting, ...]) -> None:
    seen: dict[str, str] = {}
    for setting in settings:
        # a hook may serve two settings with two values; every other place holds one value only
        if setting.target.kind == "call":
            continue
        first = seen.setdefault(str(setting.target), setting.name)
        if first != setting.name:
            raise SettingError(
                f"settings '{first}' and '{setting.name}' both write {setting.target}",
                hint="keep one of them, or let them write different places",
            )


def _dtype_name(setting: str, value: Value) -> str:
    if not isinstance(value, str):
        raise SettingError(
            f"setting '{setting}': {value!r} is no dtype",
            hint="write a torch dtype by name, e.g. float32 or bfloat16",
        )
    return value


def _checkpoint_name(setting: str, value: Value) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise SettingError(
            f"setting '{setting}': {value!r} is no checkpoint",
            hint="write a model folder or a hub id, or null for the weights as they were loaded",
        )
    return value


def _environment_text(setting: str, value: Value) -> str | None:
    if isinstance(value, (list, dict)):
        raise SettingError(
            f"setting '{setting}': an environment variable cannot hold {value!r}",
            hint="write a string, a number, true, false or null (unset)",
        )
    if isinstance(value, bool):
        return "1" if value else "0"
    return None if value is None else str(value)


def _build_inputs(variant: Variant, overrides: Mapping[str, Value]) -> dict[str, Value]:
    recipe = variant.build
    if recipe is None:
        if overrides:
            raise SettingError(
                f"'{variant.name}' has settings build.{', build.'.join(overrides)} "
                "but no build recipe",
                hint="add build: to this model, or another target to these settings",
            )
        return {}
    if recipe.command:
        used = placeholders(recipe.command)
        known = {*recipe.inputs, *used} - {"output"}
        for name in overrides:
            if name not in used:
                raise SettingError(
                    f"'{variant.name}': the build command never reads '{name}'"
                    f"{nearest(name, known)}",
                    hint=f"write {{{name}}} where the command needs it",
                )
    return {**recipe.inputs, **overrides}
