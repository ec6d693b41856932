"""Checks beyond shape: names, targets, constraints and recipes that must fit each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

from pydantic import BaseModel, ValidationError

from evalguard.config.documents import Document, Inherited
from evalguard.config.entries import RunEntry
from evalguard.config.guard import Problem
from evalguard.config.schema import (
    SAYING_SOMETHING,
    AcceptEntry,
    BuildEntry,
    ConstraintEntry,
    GateEntry,
    GuardFile,
    LimitsEntry,
    ModelEntry,
    PairEntry,
    ServeEntry,
    SettingEntry,
    setting_target,
)
from evalguard.config.yaml_nodes import Loc
from evalguard.core.reports.tracked_run import NO_TRACKER
from evalguard.core.settings import Value
from evalguard.errors import UsageError, nearest
from evalguard.plugins import TRACKERS, recipe_function

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
    seen: dict[str, str] = {}
    for name, setting in model.entry.settings.items():
        target = setting_target(name, setting)
        loc = model.place("settings", name)
        other = seen.setdefault(str(target), name)
        if other != name:
            line = document.line(model.place("settings", other))
            message = f"settings '{name}' and '{other}' (line {line}) have one target, {target}"
            yield document.problem(loc, message)
        if doubled := _doubled(setting):
            message = f"an alternative of setting '{name}' is a value of it already: "
            yield document.problem(loc, message + shown_location(doubled[0]))
        if target.kind == "build" and model.entry.build is None:
            message = f"setting '{name}' is a build input, and '{model.name}' has no build recipe"
            yield document.problem(
                loc, message, "add build: {command: [...]} or build: {call: ...}"
            )
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
    if build.output.startswith(("/", "~")) or ".." in build.output.split("/"):
        message = f"output '{build.output}' is not inside the build folder"
        yield document.problem((*loc, "output"), message, "write a relative path without '..'")


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


# Validation: pydantic's findings as problems with line, finding and the nearest right name.


# Which model stands where; "*" is any key or position.
_PLACES: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): GuardFile,
    ("models", "*"): ModelEntry,
    ("models", "*", "settings", "*"): SettingEntry,
    ("models", "*", "constraints", "*"): ConstraintEntry,
    ("models", "*", "build"): BuildEntry,
    ("models", "*", "serve"): ServeEntry,
    ("pairs", "*"): PairEntry,
    ("pairs", "*", "accept", "*"): AcceptEntry,
    ("run",): RunEntry,
    ("gate",): GateEntry,
    ("gate", "metrics"): LimitsEntry,
    ("pairs", "*", "gate"): GateEntry,
    ("pairs", "*", "gate", "metrics"): LimitsEntry,
}

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping (name: value)",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping (name: value)",
    "model_type": "a mapping (name: value)",
    "string_type": "text",
}


_NOTHING_SAID = (
    "name the models in it; a file for folders and hub ids needs none: it has run, gate or clusters"
)


def validate(document: Document) -> tuple[GuardFile | None, list[Problem]]:
    """Return the validated guard file, or None and what is wrong with it."""
    try:
        file = GuardFile.model_validate(document.data)
    except ValidationError as error:
        return None, [_problem(found, document) for found in error.errors()]
    if file.model_fields_set.isdisjoint(SAYING_SOMETHING):
        return None, [document.problem((), "the guard file has no 'models'", _NOTHING_SAID)]
    return file, []


def dotted_key(loc: Loc) -> str:
    """Return a location as people write it: ``models.orig.settings``, ``pairs[0].base``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "the guard file"


def shown_location(value: object) -> str:
    """Return a value and its type in words, cut to a line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a truth value)"
    if isinstance(value, int):
        return f"{value} (a whole number)"
    if isinstance(value, float):
        return f"{value} (a number)"
    if isinstance(value, str):
        return f"'{value[:60]}' (text)"
    kind = "mapping" if isinstance(value, Mapping) else "list"
    return f"a {kind} of {len(value)}" if isinstance(value, (Mapping, list)) else repr(value)


def _problem(found: Any, document: Document) -> Problem:
    loc: Loc = tuple(found["loc"])
    kind = found["type"]
    if kind == "extra_forbidden":
        parent, key = loc[:-1], str(loc[-1])
        known = _keys_at(parent)
        message = f"unknown key '{key}' in {dotted_key(parent)}{nearest(key, known)}"
        return document.problem(loc, message, f"keys of {dotted_key(parent)}: {', '.join(known)}")
    if kind == "missing":
        return document.problem(loc, f"{dotted_key(loc[:-1])} has no '{loc[-1]}'")
    if loc and loc[-1] == "[key]":
        return document.problem(
            loc[:-1],
            f"'{loc[-2]}' is not a name",
            "names hold letters, digits, and _ . + - (not first: . + -)",
        )
    expected = _expected(kind, found)
    suffix = ""
    if kind == "literal_error" and isinstance(found["input"], str):
        suffix = nearest(found["input"], _choices(found))
    said = f"{dotted_key(loc)}: found {shown_location(found['input'])}, expected {expected}{suffix}"
    return document.problem(loc, said)


def _expected(kind: str, found: Any) -> str:
    """Return in words what would have been right."""
    context = found.get("ctx", {})
    words = {
        **_EXPECTED,
        "greater_than": f"a number above {context.get('gt', 0):g}",
        "greater_than_equal": f"{context.get('ge')} or more",
        "less_than_equal": f"{context.get('le')} or less",
        "finite_number": "a finite number",
        "less_than": f"a number below {context.get('lt', 0):g}",
        "literal_error": f"one of {', '.join(_choices(found))}",
        "string_pattern_mismatch": "a name (letters, digits, and _ . + -)",
        "string_too_short": "text that is not empty",
        "too_short": "at least one entry",
        "value_error": str(context.get("error")),
    }
    return words.get(kind, str(found["msg"]))


def _choices(found: Any) -> list[str]:
    text = str(found.get("ctx", {}).get("expected", "")).replace(" or ", ", ")
    return [choice.strip().strip("'") for choice in text.split(",")]


def _keys_at(loc: Loc) -> list[str]:
    for pattern, model in _PLACES.items():
        same = len(pattern) == len(loc)
        if same and all(p in ("*", str(part)) for p, part in zip(pattern, loc, strict=True)):
            return [field.alias or name for name, field in model.model_fields.items()]
    return []
