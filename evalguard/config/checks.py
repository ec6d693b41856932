"""Checks beyond shape: names, targets, constraints and recipes that must fit each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date

from evalguard.config.guard_document import Document
from evalguard.config.guard_shape import (
    BuildEntry,
    GuardFile,
    ModelEntry,
    PairEntry,
    ServeEntry,
    SettingEntry,
    setting_target,
)
from evalguard.config.inheritance import Inherited
from evalguard.config.problems import Problem
from evalguard.config.validation import dotted_key, shown_location
from evalguard.config.yaml_nodes import Loc
from evalguard.core.reports.tracked_run import NO_TRACKER
from evalguard.core.settings import BuildRecipe, Target, Value
from evalguard.errors import EvalguardError, UsageError, nearest
from evalguard.plugins import TRACKERS, check_recipe_inputs, recipe_function

_TRUST = "trust_remote_code"


def check_entry(name: str, entry: ModelEntry, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with what a model itself says, whatever it inherits."""
    here: Loc = ("models", name)
    if _TRUST in entry.model_args:
        yield _misplaced_trust((*here, "model_args", _TRUST), name, document)
    for key, setting in entry.settings.items():
        loc = (*here, "settings", key, "target")
        try:
            target = setting_target(key, setting)
        except UsageError as error:
            yield document.problem(loc, f"setting '{key}': {error}", error.hint)
            continue
        if (target.kind, target.path) == ("model_args", _TRUST):
            yield _misplaced_trust(loc, name, document)
    if entry.build is not None:
        yield from _check_build((*here, "build"), entry.build, document)
    if entry.serve is not None:
        yield from _check_serve((*here, "serve"), entry.serve, document)


def check_model(model: Inherited, document: Document) -> Iterator[Problem]:
    """Yield what does not fit together in a model, with all that it inherits.

    Every target of it must already be readable.
    """
    seen: dict[str, Target] = {}
    for name, setting in model.entry.settings.items():
        target = setting_target(name, setting)
        loc = model.place("settings", name)
        for other in (other for other, one in seen.items() if one.overlaps(target)):
            line = document.line(model.place("settings", other))
            message = f"settings '{name}' and '{other}' (line {line}) have one target, {target}"
            yield document.problem(loc, message)
            break
        seen[name] = target
        if doubled := _doubled(setting):
            message = f"an alternative of setting '{name}' is a value of it already: "
            yield document.problem(loc, message + shown_location(doubled[0]))
        if target.kind == "build" and model.entry.build is None:
            message = f"setting '{name}' is a build input, and '{model.name}' has no build recipe"
            yield document.problem(
                loc, message, "add build: {command: [...]} or build: {call: ...}"
            )
        if target.kind == "build" and model.entry.build is not None:
            yield from _check_build_setting(model, name, setting, document)
        if target.kind == "serve" and model.entry.serve is None:
            message = f"setting '{name}' is of a server, and '{model.name}' starts none"
            yield document.problem(loc, message, "add serve: {command: [...], url: ...}")
    for index, constraint in enumerate(model.entry.constraints):
        for part, wanted in (("if", constraint.when), ("then", constraint.then)):
            for name, value in wanted.items():
                loc = model.place("constraints", index, part, name)
                yield from _check_constraint(model, loc, name, value, document)


def check_pairs(file: GuardFile, document: Document) -> Iterator[Problem]:
    """Yield pairs that name no model of the file, or stand there twice."""
    seen: dict[tuple[str, str], int] = {}
    for index, pair in enumerate(file.pairs):
        for key, name in (("base", pair.base), *(("cand", name) for name in pair.cand)):
            if name not in file.models:
                message = f"pair names '{name}', which is not a model of this file"
                message += nearest(name, file.models)
                known = f"models of this file: {', '.join(file.models)}"
                yield document.problem(("pairs", index, key), message, known)
        yield from _check_dates(pair, index, document)
        for place, name in enumerate(pair.cand):
            first = seen.setdefault((pair.base, name), index)
            if first != index or name in pair.cand[:place]:
                line = document.line(("pairs", first))
                message = f"pair {pair.base}, {name} is already on line {line}"
                yield document.problem(("pairs", index), message)


def _check_dates(pair: PairEntry, index: int, document: Document) -> Iterator[Problem]:
    for place, waiver in enumerate(pair.accept):
        try:
            date.fromisoformat(waiver.until)
        except ValueError:
            message = f"there is no day {waiver.until}"
            yield document.problem(("pairs", index, "accept", place, "until"), message)


def _check_constraint(
    model: Inherited, loc: Loc, name: str, value: Value, document: Document
) -> Iterator[Problem]:
    settings = model.entry.settings
    if name not in settings:
        message = f"a constraint of '{model.name}' names '{name}', which is not a setting of it"
        known = f"its settings: {', '.join(settings) or 'none'}"
        yield document.problem(loc, message + nearest(name, settings), known)
    elif not _is_value_of(settings[name], value):
        message = f"a constraint of '{model.name}' wants '{name}' to be {shown_location(value)}"
        *others, last = map(json.dumps, _values(settings[name]))
        expected = f"its values are {', '.join(others)} and {last}"
        yield document.problem(loc, f"{message}; {expected}")


def _doubled(setting: SettingEntry) -> list[Value]:
    """Alternatives that are the reference or candidate value, or stand there twice."""
    texts = list(map(_text, _values(setting)))
    return [value for at, value in enumerate(setting.alternatives, 2) if texts[at] in texts[:at]]


def _is_value_of(setting: SettingEntry, value: Value) -> bool:
    # Compared as JSON: in Python, true equals 1.
    return _text(value) in map(_text, _values(setting))


def _values(setting: SettingEntry) -> tuple[Value, ...]:
    return (setting.reference, setting.candidate, *setting.alternatives)


def _text(value: Value) -> str:
    return json.dumps(value, sort_keys=True)


def _check_build(loc: Loc, build: BuildEntry, document: Document) -> Iterator[Problem]:
    if bool(build.command) == bool(build.call):
        found = "both command and call" if build.call else "neither command nor call"
        yield document.problem(
            loc, f"{dotted_key(loc)} has {found}; a build recipe has one of them"
        )
    if build.call:
        message = f"call '{build.call}' names no function"
        hint = "write pkg.mod:function or path/to/file.py:function"
        try:
            module, _, function = recipe_function(build.call).rpartition(":")
            named = bool(module) and function.isidentifier()
        except UsageError as error:
            named, message, hint = False, f"{message}: {error}", f"{hint}; {error.hint}"
        if not named:
            yield document.problem((*loc, "call"), message, hint)
        else:
            yield from _check_inputs(loc, build, document)
    if build.output.startswith(("/", "~")) or ".." in build.output.split("/"):
        message = f"output '{build.output}' is not inside the build folder"
        yield document.problem((*loc, "output"), message, "write a relative path without '..'")


def _check_inputs(loc: Loc, build: BuildEntry, document: Document) -> Iterator[Problem]:
    """Yield what one of evalguard's own recipes does not take."""
    for name, value in build.inputs.items() if build.call else ():
        try:
            check_recipe_inputs(recipe_function(build.call), {name: value})
        except UsageError as error:
            yield document.problem((*loc, "inputs", name), str(error), error.hint)


def _check_build_setting(
    model: Inherited, name: str, setting: SettingEntry, document: Document
) -> Iterator[Problem]:
    """Yield why a build cannot have a value of a ``build.X`` setting."""
    build, path = model.entry.build, setting_target(name, setting).path
    assert build is not None
    recipe = BuildRecipe(command=tuple(build.command), inputs=build.inputs)
    top = path.partition(".")[0]
    for value in _values(setting):
        try:
            inputs = recipe.inputs_with({path: value})
            if build.call:
                check_recipe_inputs(recipe_function(build.call), {top: inputs[top]})
        except EvalguardError as error:
            message = f"setting '{name}': {error}"
            yield document.problem(model.place("settings", name), message, error.hint)
            return


def check_track(file: GuardFile, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with the trackers that a file names."""
    names = file.run.track or ()
    for name in names:
        if name == NO_TRACKER:
            if len(names) > 1:
                message = "run.track: none stands beside another tracker"
                yield document.problem(("run", "track"), message)
            continue
        try:
            TRACKERS.find(name)
        except UsageError as error:
            yield document.problem(("run", "track"), f"run.track: {error}", error.hint)


_URL = re.compile(r"https?://[^/\s]+(/\S*)?")


def _check_serve(loc: Loc, serve: ServeEntry, document: Document) -> Iterator[Problem]:
    if not _URL.fullmatch(serve.url):
        yield document.problem(
            (*loc, "url"),
            f"url '{serve.url}' is not the address of a server",
            "write http://127.0.0.1:{port}/v1/completions",
        )
    if serve.ready and not (serve.ready.startswith("/") or _URL.fullmatch(serve.ready)):
        yield document.problem(
            (*loc, "ready"),
            f"ready '{serve.ready}' is neither a path nor an address",
            "write /health, or http://127.0.0.1:{port}/health",
        )
    for name, value in serve.env.items():
        if isinstance(value, (list, dict)):
            message = f"an environment variable cannot hold {shown_location(value)}"
            yield document.problem((*loc, "env", name), message, "write text or a number")


def _misplaced_trust(loc: Loc, name: str, document: Document) -> Problem:
    return document.problem(
        loc,
        f"{_TRUST} does not belong in model_args",
        f"write it beside model_args: models.{name}.{_TRUST}: true",
    )
