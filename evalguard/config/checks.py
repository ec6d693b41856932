"""Checks beyond shape: names, targets, constraints and recipes that must fit each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date

from evalguard.config.document import Document
from evalguard.config.inherit import Inherited
from evalguard.config.model import BuildEntry, GuardFile, ModelEntry, PairEntry, SettingEntry
from evalguard.config.problems import Problem
from evalguard.config.validate import dotted, shown
from evalguard.config.yaml_nodes import Loc
from evalguard.errors import UsageError, nearest
from evalguard.settings import Target, Value

_TRUST = "trust_remote_code"


def check_entry(name: str, entry: ModelEntry, document: Document) -> Iterator[Problem]:
    """Yield what is wrong with what a model itself says, whatever it inherits."""
    here: Loc = ("models", name)
    if _TRUST in entry.model_args:
        yield _misplaced_trust((*here, "model_args", _TRUST), name, document)
    for key, setting in entry.settings.items():
        loc = (*here, "settings", key, "target")
        try:
            target = Target.parse(setting.target)
        except UsageError as error:
            yield document.problem(loc, f"setting '{key}': {error}", error.hint)
            continue
        if (target.kind, target.path) == ("model_args", _TRUST):
            yield _misplaced_trust(loc, name, document)
    if entry.build is not None:
        yield from _check_build((*here, "build"), entry.build, document)


def check_model(model: Inherited, document: Document) -> Iterator[Problem]:
    """Yield what does not fit together in a model, with all that it inherits.

    Every target of it must already be readable.
    """
    seen: dict[str, str] = {}
    for name, setting in model.entry.settings.items():
        target = Target.parse(setting.target)
        loc = model.place("settings", name)
        other = seen.setdefault(str(target), name)
        if other != name:
            line = document.line(model.place("settings", other))
            message = f"settings '{name}' and '{other}' (line {line}) have one target, {target}"
            yield document.problem(loc, message)
        if doubled := _doubled(setting):
            message = f"an alternative of setting '{name}' is a value of it already: "
            yield document.problem(loc, message + shown(doubled[0]))
        if target.kind == "build" and model.entry.build is None:
            message = f"setting '{name}' is a build input, and '{model.name}' has no build recipe"
            yield document.problem(
                loc, message, "add build: {command: [...]} or build: {call: ...}"
            )
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
                message = f"pair names '{name}', which is no model of this file"
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
        message = f"a constraint of '{model.name}' names '{name}', which is no setting of it"
        known = f"its settings: {', '.join(settings) or 'none'}"
        yield document.problem(loc, message + nearest(name, settings), known)
    elif not _is_value_of(settings[name], value):
        message = f"a constraint of '{model.name}' wants '{name}' to be {shown(value)}"
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
        yield document.problem(loc, f"{dotted(loc)} has {found}; a build recipe has one of them")
    if build.call:
        module, colon, function = build.call.rpartition(":")
        if not (module and colon and function.isidentifier()):
            yield document.problem(
                (*loc, "call"),
                f"call '{build.call}' names no function",
                "write pkg.mod:function or path/to/file.py:function",
            )
    if build.output.startswith(("/", "~")) or ".." in build.output.split("/"):
        message = f"output '{build.output}' is not inside the build folder"
        yield document.problem((*loc, "output"), message, "write a relative path without '..'")


def _misplaced_trust(loc: Loc, name: str, document: Document) -> Problem:
    return document.problem(
        loc,
        f"{_TRUST} does not belong in model_args",
        f"write it beside model_args: models.{name}.{_TRUST}: true",
    )
