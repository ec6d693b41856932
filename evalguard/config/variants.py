"""Variants: the models of a validated guard file as domain objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evalguard.config.guard_document import Document, Loc, Problem
from evalguard.config.guard_shape import (
    BuildEntry,
    GuardFile,
    ModelEntry,
    ServeEntry,
    setting_target,
)
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
from evalguard.errors import nearest
from evalguard.plugins import recipe_function

# "For that model" is taken at its word: trusting one model's code says nothing about the model
# that a descendant puts in its place, nor does what its code reads.
_NEVER_INHERITED = ("extends", "trust_remote_code", "allow_pickle", "inputs", "revision")
_BY_KEY = ("model_args", "settings")
# Far above what anybody writes by hand; the time it takes to merge grows with the square.
MAX_CHAIN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A model with everything it inherits. ``origins`` maps a key to its place in the file."""

    name: str
    entry: ModelEntry
    origins: Mapping[Loc, Loc]

    def place(self, *loc: str | int) -> Loc:
        """Return where in the file a part of this model is written."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.origins:
                return (*self.origins[loc[:length]], *loc[length:])
        return ("models", self.name, *loc)


def inherit(file: GuardFile, document: Document) -> tuple[dict[str, Inherited], list[Problem]]:
    """Return every model with what it inherits; models whose ``extends`` is wrong are left out."""
    made: dict[str, Inherited] = {}
    problems: list[Problem] = []
    for name in file.models:
        chain, problem = _chain(name, file, document)
        if problem is None:
            made[name] = _merged(name, [(step, file.models[step]) for step in reversed(chain)])
        else:
            problems.append(problem)
    return made, problems


def _chain(name: str, file: GuardFile, document: Document) -> tuple[list[str], Problem | None]:
    """Return the model and its ancestors, nearest first, or what is wrong with the chain."""
    chain = [name]
    while (parent := file.models[chain[-1]].extends) is not None:
        loc = ("models", chain[-1], "extends")
        if parent not in file.models:
            message = f"'{chain[-1]}' extends '{parent}', which is not a model of this file"
            known = ", ".join(file.models)
            message += nearest(parent, file.models)
            return chain, document.problem(loc, message, f"models of this file: {known}")
        if parent in chain:
            circle = chain[chain.index(parent) :]
            start = circle.index(min(circle))
            circle = circle[start:] + circle[:start]
            message = f"models extend each other in a circle: {' -> '.join([*circle, circle[0]])}"
            return chain, document.problem(("models", circle[0], "extends"), message)
        if len(chain) == MAX_CHAIN:
            message = f"'{name}' extends over {MAX_CHAIN} models, one through the other"
            return chain, document.problem(("models", name, "extends"), message)
        chain.append(parent)
    return chain, None


def _merged(name: str, steps: list[tuple[str, ModelEntry]]) -> Inherited:
    """Merge from the root ancestor down: maps by key, everything else replaced."""
    values: dict[str, object] = {}
    origins: dict[Loc, Loc] = {}
    for owner, entry in steps:
        for key in entry.model_fields_set:
            if key in _NEVER_INHERITED and owner != name:
                continue
            value = getattr(entry, key)
            if key in _BY_KEY:
                known = values.get(key, {})
                assert isinstance(known, dict)
                values[key] = {**known, **value}
                origins.update({(key, item): ("models", owner, key, item) for item in value})
            else:
                values[key] = value
                origins[(key,)] = ("models", owner, key)
    return Inherited(name=name, entry=ModelEntry.model_construct(None, **values), origins=origins)


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
    resolved = dict(value)
    if isinstance(arguments, dict):
        resolved["model_args"] = resolve_model_args(arguments, folder)
    if isinstance(edits, dict):
        resolved["settings"] = {
            target: resolve_model(edit, folder)
            if target.startswith("weights:") and isinstance(edit, str)
            else edit
            for target, edit in edits.items()
        }
    return resolved


def _recipe(build: BuildEntry, folder: Path) -> BuildRecipe:
    return BuildRecipe(
        command=tuple(build.command),
        call=recipe_function(build.call) if build.call else "",
        output=build.output,
        inputs=dict(build.inputs),
        folder=str(folder),
    )
