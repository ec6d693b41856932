"""Variants: the models of a validated guard file as domain objects."""

from __future__ import annotations

from pathlib import Path

from evalguard.config.guard_shape import (
    BuildEntry,
    ModelEntry,
    ServeEntry,
    setting_target,
)
from evalguard.config.inheritance import Inherited
from evalguard.config.local_paths import (
    resolve_model,
    resolve_model_args,
    resolve_path,
    resolve_value,
)
from evalguard.core.settings import (
    BuildRecipe,
    Constraint,
    OwnEnvironment,
    ServeRecipe,
    Setting,
    Value,
    Variant,
)
from evalguard.plugins import recipe_function


def variant_of(model: Inherited, *, folder: Path, code_allowed: bool) -> Variant:
    """Return the variant of a model, every setting at its candidate value.

    Local paths are resolved against ``folder``. Where code is not allowed the variant trusts none,
    whatever the file says; ``require_code_allowed`` tells the user.
    """
    entry = model.entry
    targets = {name: setting_target(name, setting) for name, setting in entry.settings.items()}

    def resolved(name: str, value: Value) -> Value:
        target = targets[name]
        if target.kind in ("weights", "module") and isinstance(value, str):
            return resolve_model(value, folder)
        if target.kind == "module" and isinstance(value, dict):
            return _resolve_module_source(value, folder)
        is_argument = target.kind == "model_args"
        return resolve_value(target.path, value, folder) if is_argument else value

    settings = tuple(
        Setting(
            name=name,
            reference=resolved(name, setting.reference),
            candidate=resolved(name, setting.candidate),
            target=targets[name],
            alternatives=tuple(resolved(name, value) for value in setting.alternatives),
        )
        for name, setting in entry.settings.items()
    )
    constraints = tuple(
        Constraint(
            when={name: resolved(name, value) for name, value in constraint.when.items()},
            then={name: resolved(name, value) for name, value in constraint.then.items()},
        )
        for constraint in entry.constraints
    )
    return Variant(
        name=model.name,
        model=entry.model,
        model_args=resolve_model_args(entry.model_args, folder),
        settings=settings,
        constraints=constraints,
        assignment={setting.name: setting.candidate for setting in settings},
        build=None if entry.build is None else _recipe(entry.build, folder),
        environment=_environment(entry, folder),
        serve=None if entry.serve is None else _server(entry.serve, folder),
        trust_remote_code=entry.trust_remote_code and code_allowed,
        allow_pickle=entry.allow_pickle and code_allowed,
        allow_code=code_allowed,
        code_folder=str(folder),
        inputs=None
        if entry.inputs is None
        else {name: str(resolve_path(name, folder)) for name in entry.inputs},
        revision=entry.revision,
    )


def _environment(entry: ModelEntry, folder: Path) -> OwnEnvironment | None:
    if not entry.python and not entry.requirements:
        return None
    python = entry.python or ""
    if "/" in python:
        # not resolved: the link in a virtual environment says which one it is
        python = str((folder / python).expanduser().absolute())
    return OwnEnvironment(python=python, requirements=tuple(entry.requirements))


def _server(serve: ServeEntry, folder: Path) -> ServeRecipe:
    return ServeRecipe(
        command=tuple(serve.command),
        url=serve.url,
        ready=serve.ready,
        env={
            name: None if value is None else str(int(value) if isinstance(value, bool) else value)
            for name, value in serve.env.items()
        },
        start_limit=float(serve.start_limit),
        folder=str(folder),
    )


def _resolve_module_source(value: dict[str, Value], folder: Path) -> Value:
    """A model that modules are taken from, with local paths resolved; what is odd stays."""
    arguments, edits = value.get("model_args"), value.get("settings")
    found = dict(value)
    if isinstance(arguments, dict):
        found["model_args"] = resolve_model_args(arguments, folder)
    if isinstance(edits, dict):
        found["settings"] = {
            target: resolve_model(one, folder)
            if target.startswith("weights:") and isinstance(one, str)
            else one
            for target, one in edits.items()
        }
    return found


def _recipe(build: BuildEntry, folder: Path) -> BuildRecipe:
    return BuildRecipe(
        command=tuple(build.command),
        call=recipe_function(build.call) if build.call else "",
        output=build.output,
        inputs=dict(build.inputs),
        folder=str(folder),
    )
