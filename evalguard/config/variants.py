"""Variants: the models of a validated guard file as domain objects."""

from __future__ import annotations

from pathlib import Path

from evalguard.config.inherit import Inherited
from evalguard.config.model import BuildEntry
from evalguard.config.paths import resolve_model, resolve_model_args, resolve_value
from evalguard.settings import BuildRecipe, Constraint, Setting, Target, Value, Variant


def variant_of(model: Inherited, *, folder: Path, code_allowed: bool) -> Variant:
    """Return the variant of a model, every setting at its candidate value.

    Local paths are resolved against ``folder``. Where code is not allowed the variant trusts none,
    whatever the file says; ``require_code_allowed`` tells the user.
    """
    entry = model.entry
    targets = {name: Target.parse(setting.target) for name, setting in entry.settings.items()}

    def resolved(name: str, value: Value) -> Value:
        target = targets[name]
        if target.kind == "weights" and isinstance(value, str):
            return resolve_model(value, folder)
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
        trust_remote_code=entry.trust_remote_code and code_allowed,
        allow_pickle=entry.allow_pickle and code_allowed,
        allow_code=code_allowed,
        code_folder=str(folder),
    )


def _recipe(build: BuildEntry, folder: Path) -> BuildRecipe:
    return BuildRecipe(
        command=tuple(build.command),
        call=build.call,
        output=build.output,
        inputs=dict(build.inputs),
        folder=str(folder),
    )
