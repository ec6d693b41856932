"""Loading one guard file: text to a Guard, or every problem that it has.

No error of loading: a guard file may be read where only some of its models are. ``evalguard
check`` tells of it. ``os.path`` is asked, not ``Path``, which raises where a text can be no path.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from evalguard.config.entries import AnswerEntry, expected_answers
from evalguard.config.gate_entry import DECLARED, GateEntry, LimitsEntry, MetricGateEntry
from evalguard.config.guard import Guard, Origin, Pair
from evalguard.config.guard_document import (
    Document,
    Loc,
    Problem,
    dotted_key,
    raise_problems,
    read_guard_document,
)
from evalguard.config.guard_shape import (
    SAYING_SOMETHING,
    AcceptEntry,
    BuildEntry,
    ConstraintEntry,
    GuardFile,
    ModelEntry,
    PairEntry,
    ServeEntry,
    SettingEntry,
    readable_target,
    setting_target,
)
from evalguard.config.local_paths import PATH_ARGS, is_written_as_path, resolve_path
from evalguard.config.run_entry import RunEntry, read_run
from evalguard.config.trust import file_uses, model_uses, surroundings_of
from evalguard.config.variants import Inherited, inherit, variant_of
from evalguard.core.figures import figure_named
from evalguard.core.gate import GateOptions, Waiver
from evalguard.core.limits import Limit
from evalguard.core.settings import BuildRecipe, Target, Value
from evalguard.core.tracked_run import NO_TRACKER
from evalguard.core.verdict import Margin
from evalguard.errors import EvalguardError, UsageError, nearest
from evalguard.plugins import TRACKERS, check_recipe_inputs, recipe_function

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
    ("answers", "*"): AnswerEntry,
    ("gate",): GateEntry,
    ("gate", "metrics"): LimitsEntry,
    ("gate", "metrics", "*"): MetricGateEntry,
    ("pairs", "*", "gate"): GateEntry,
    ("pairs", "*", "gate", "metrics"): LimitsEntry,
    ("pairs", "*", "gate", "metrics", "*"): MetricGateEntry,
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
    "name the models in it; a file for folders and hub ids needs none: it has run, gate, "
    "clusters or answers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedFile:
    """A guard file as far as its shape is right.

    Attributes:
        file: what is left of it without ``dropped``; None where that is nothing.
        document: the same as data.
        problems: of its shape.
        dropped: places of the smallest parts that can go without the rest losing its meaning: a
            setting, a pair, a model's build.
    """

    file: GuardFile | None
    document: Document
    problems: tuple[Problem, ...] = ()
    dropped: frozenset[Loc] = frozenset()

    def lacks(self, model: str, *keys: str) -> bool:
        """Whether one of these parts of a model, or of one that it extends, was dropped.

        Without keys: whether any was.
        """
        wanted = {"extends", *keys}
        return any(
            part[:2] == ("models", name) and (not keys or wanted.issuperset(part[2:3]))
            for name in self.lineage(model)
            for part in self.dropped
        )

    def lineage(self, model: str) -> list[str]:
        """A model and those that it extends, as far as they are there."""
        assert self.file is not None
        names: list[str] = []
        name: str | None = model
        while name is not None and name not in names:
            names.append(name)
            name = self.file.models[name].extends if name in self.file.models else None
        return names


def validate(document: Document) -> ValidatedFile:
    """Return the guard file, or what is sound of it beside what is wrong with the rest."""
    try:
        file = GuardFile.model_validate(document.data)
    except ValidationError as error:
        problems = tuple(_problem(detail, document) for detail in error.errors())
        dropped = frozenset(_part(detail["loc"], document) for detail in error.errors())
        rest = document.without(dropped)
        try:
            sound = None if () in dropped else GuardFile.model_validate(rest.data)
        except ValidationError:
            sound = None
        return ValidatedFile(file=sound, document=rest, problems=problems, dropped=dropped)
    if file.model_fields_set.isdisjoint(SAYING_SOMETHING):
        nothing = document.problem((), "the guard file has no 'models'", _NOTHING_SAID)
        return ValidatedFile(file=None, document=document, problems=(nothing,))
    return ValidatedFile(file=file, document=document)


def _part(loc: Loc, document: Document) -> Loc:
    """The smallest part around a fault without which the rest still means what it says."""
    while loc and loc not in document.lines:
        loc = loc[:-1]
    if loc[:1] == ("models",):
        return loc[: 3 if loc[2:3] in (("build",), ("serve",)) else 4]
    return loc[: 2 if loc[:1] in (("pairs",), ("run",), ("clusters",), ("answers",)) else 1]


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
        meant = nearest(key, known)
        message = f"unknown key '{key}' in {dotted_key(parent)}{meant}"
        hint = f"keys of {dotted_key(parent)}: {', '.join(known)}"
        if "model_args" in known and not meant:  # pretrained, dtype ..., a level too high
            hint = f"arguments of the model stand in model_args: {{{key}: ...}}; {hint}"
        return document.problem(loc, message, hint)
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
    mismatch = (
        f"{dotted_key(loc)}: found {shown_location(found['input'])}, expected {expected}{suffix}"
    )
    return document.problem(loc, mismatch)


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


_HINT = "a relative path starts at the guard file; a hub id is NAME or OWNER/NAME"


def absent_paths(validated: ValidatedFile, models: Iterable[Inherited]) -> Iterator[Problem]:
    """Yield every folder of tasks, file of requests and local model that is not there.

    A path that models share by ``extends`` is named once, where it is written.
    """
    parsed, document = validated.file, validated.document
    assert parsed is not None
    for number, folder in enumerate(parsed.include_path):
        if not os.path.isdir(resolve_path(folder, document.folder)):
            yield document.problem(
                ("include_path", number),
                f"include_path: there is no folder {folder}",
                "the folder that holds the tasks' YAML files; a relative path starts at the guard "
                "file",
            )
    of_pairs = ((("pairs", n, "requests"), pair.requests) for n, pair in enumerate(parsed.pairs))
    for loc, named in ((("requests",), parsed.requests), *of_pairs):
        if named is not None and not os.path.isfile(resolve_path(named, document.folder)):
            yield document.problem(
                loc,
                f"requests: there is no file {named}",
                "a JSONL file of chat requests; a relative path starts at the guard file",
            )
    problems: dict[tuple[Loc, str], Problem] = {}
    for model in models:
        for loc, what, value in _named(model, built=validated.lacks(model.name, "build")):
            if isinstance(value, str) and _is_absent(value, document.folder):
                problem = document.problem(loc, f"{what}: there is nothing at {value}", _HINT)
                problems.setdefault((loc, value), problem)
        for name, inside, pretrained in _absent_inside(model, document.folder):
            loc = model.place("model_args", name)
            message = f"{name} of '{model.name}': there is no {inside} in {pretrained}"
            problems.setdefault((loc, inside), document.problem(loc, message))
    yield from problems.values()


def _named(model: Inherited, *, built: bool) -> Iterator[tuple[Loc, str, Value]]:
    """Where a model may name a path: place in the file, what it is of, and the value.

    ``built``: its recipe, or that of a model which it extends, is at fault and told elsewhere.
    """
    entry = model.entry
    for number, path in enumerate(entry.inputs or ()):
        # No id of the hub: a path, whether or not it begins like one.
        local = path if is_written_as_path(path) else f"./{path}"
        yield model.place("inputs", number), "inputs", local
    for name, value in entry.model_args.items():
        # What is built takes the place of pretrained.
        if name in PATH_ARGS and not (name == "pretrained" and (built or entry.build is not None)):
            yield model.place("model_args", name), f"{name} of '{model.name}'", value
    for key, setting in entry.settings.items():
        target = readable_target(key, setting)
        of_path = target and target.kind == "model_args" and target.path in PATH_ARGS
        if target and (of_path or target.kind in ("weights", "module")):
            loc = model.place("settings", key)
            for value in (setting.reference, setting.candidate, *setting.alternatives):
                if target.kind == "module" and isinstance(value, dict):
                    arguments = value.get("model_args")
                    value = arguments.get("pretrained") if isinstance(arguments, dict) else None
                yield loc, f"setting '{key}' of '{model.name}'", value


def _absent_inside(model: Inherited, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Arguments that name a part of a local folder, and what it lacks of them."""
    arguments = model.entry.model_args
    pretrained = arguments.get("pretrained")
    if not isinstance(pretrained, str) or not os.path.isdir(resolve_path(pretrained, folder)):
        return
    for name in ("subfolder", "gguf_file", "file"):
        part = arguments.get(name)
        if isinstance(part, str) and not any(
            os.path.exists(resolve_path(part, at))
            for at in (resolve_path(pretrained, folder), folder)
        ):
            yield name, part, pretrained


def _is_absent(text: str, folder: Path) -> bool:
    """Whether a text can be no hub id, and leads nowhere.

    OWNER/NAME may be one, whatever lies beside the file; with another slash it is none, but maybe
    some address that a model type reads, unless its folder is there.
    """
    if "{build}" in text or "://" in text or not text.strip():
        return False
    path = resolve_path(text, folder)
    if os.path.exists(path):
        return False
    return is_written_as_path(text) or (text.count("/") > 1 and os.path.isdir(path.parent))


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
        for earlier in (
            seen_name for seen_name, seen_target in seen.items() if seen_target.overlaps(target)
        ):
            line = document.line(model.place("settings", earlier))
            message = f"settings '{name}' and '{earlier}' (line {line}) have one target, {target}"
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
        for position, name in enumerate(pair.cand):
            first = seen.setdefault((pair.base, name), index)
            if first != index or name in pair.cand[:position]:
                line = document.line(("pairs", first))
                message = f"pair {pair.base}, {name} is already on line {line}"
                yield document.problem(("pairs", index), message)


def _check_dates(pair: PairEntry, index: int, document: Document) -> Iterator[Problem]:
    for position, waiver in enumerate(pair.accept):
        try:
            date.fromisoformat(waiver.until)
        except ValueError:
            message = f"there is no day {waiver.until}"
            yield document.problem(("pairs", index, "accept", position, "until"), message)


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
        *leading, last = map(json.dumps, _values(settings[name]))
        expected = f"its values are {', '.join(leading)} and {last}"
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
        sources = "both command and call" if build.call else "neither command nor call"
        yield document.problem(
            loc, f"{dotted_key(loc)} has {sources}; a build recipe has one of them"
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
    names = file.run.model_dump()["track"] or ()
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


# What else is checked of a file as far as it is sound, with its models and what they inherit.
FurtherCheck = Callable[[ValidatedFile, Mapping[str, Inherited]], Iterable[Problem]]


def load_guard(
    file: Path,
    label: str,
    origin: Origin,
    *,
    code_allowed: bool,
    check: FurtherCheck = lambda _file, _models: (),
) -> tuple[Guard, Document]:
    """Load one guard file; the document says where things stand in it.

    Raises:
        GuardFileError: listing all that is wrong, each with its line: of its shape, of what has to
            fit together, and what ``check`` finds.
    """
    validated = validate(read_guard_document(file, label))
    parsed, document = validated.file, validated.document
    problems = [*document.problems, *validated.problems]
    if parsed is None:
        raise_problems(problems)
    assert parsed is not None
    around = surroundings_of(file, in_configs=origin == "configs/")
    answers, of_answers = expected_answers(
        parsed.answers,
        document,
        may_read=lambda named: code_allowed or not around.path_danger(named),
    )
    models, of_models = _inherited(validated)
    raise_problems([*problems, *of_answers, *of_models, *check(validated, models)])
    folder = document.folder
    guard = Guard(
        file=file.absolute(),
        label=label,
        origin=origin,
        variants={
            name: variant_of(model, folder=folder, code_allowed=code_allowed)
            for name, model in models.items()
        },
        pairs=tuple(
            _pair(pair, name, position, document, parsed.gate)
            for position, pair in enumerate(parsed.pairs)
            for name in pair.cand
        ),
        tasks=tuple(parsed.tasks),
        requests=_file(parsed.requests, folder),
        include_paths=tuple(resolve_path(path, folder) for path in parsed.include_path),
        include_where=document.where(("include_path",)),
        clusters=dict(parsed.clusters),
        answers=answers,
        gate=_gate(parsed.gate),
        run=read_run(parsed.run),
        descriptions={name: model.entry.description for name, model in models.items()},
        parents={name: model.entry.extends for name, model in models.items()},
        code_allowed=code_allowed,
        code_uses={name: model_uses(model, document) for name, model in models.items()},
        file_uses=file_uses(parsed, document, around),
        places=_places(models.values(), document),
    )
    return guard, document


def _places(models: Iterable[Inherited], document: Document) -> dict[tuple[str, ...], str]:
    places: dict[tuple[str, ...], str] = {}
    for model in models:
        places[model.name,] = document.where(("models", model.name))
        for setting in model.entry.settings:
            places[model.name, setting] = document.where(model.place("settings", setting))
    return places


def _gate(entry: GateEntry) -> GateOptions:
    declared = {name: getattr(entry, name) for name in DECLARED}
    margin = Margin.parse(declared.pop("margin"))
    margins = entry.metrics.__pydantic_extra__ or {}
    limits = entry.metrics.model_dump(by_alias=True, exclude_none=True, exclude=set(margins))
    return GateOptions(
        **declared,
        margin=margin.value if margin.unit == "sigma" else margin,
        margins=tuple(
            (name, metric_entry.margin)
            for name, metric_entry in margins.items()
            if metric_entry.margin
        ),
        directions=tuple(
            (name, metric_entry.higher_is_better)
            for name, metric_entry in margins.items()
            if metric_entry.higher_is_better is not None
        ),
        undecided=entry.undecided,
        subtasks=entry.subtasks,
        gate_metrics=tuple(entry.only),
        advisory=tuple(entry.advisory),
        figures=tuple(
            name
            for name, metric_entry in margins.items()
            if figure_named(name) is not None
            and (metric_entry.limit is None or metric_entry.margin is not None)
        ),
        limits=(
            *(Limit(metric=metric, value=value) for metric, value in limits.items()),
            *(
                Limit.parse(name, metric_entry.limit)
                for name, metric_entry in margins.items()
                if metric_entry.limit is not None
            ),
        ),
    )


def _gate_of_pair(entry: GateEntry, of_file: GateEntry) -> GateOptions:
    """A pair's gate: what it says itself, and the file's gate for the rest."""
    overrides = {name: getattr(entry, name) for name in entry.model_fields_set}
    return _gate(of_file.model_copy(update=overrides))


def _pair(
    entry: PairEntry, candidate: str, place: int, document: Document, of_file: GateEntry
) -> Pair:
    return Pair(
        gate=None if entry.gate is None else _gate_of_pair(entry.gate, of_file),
        base=entry.base,
        candidate=candidate,
        differs=frozenset(entry.differs),
        tasks=tuple(entry.tasks),
        requests=_file(entry.requests, document.folder),
        accept=tuple(
            Waiver(
                **{**waiver.model_dump(), "filter": waiver.filter or ""},
                where=document.where(("pairs", place, "accept", number)),
            )
            for number, waiver in enumerate(entry.accept)
        ),
    )


def _file(named: str | None, folder: Path) -> Path | None:
    return None if named is None else resolve_path(named, folder)


def _inherited(validated: ValidatedFile) -> tuple[dict[str, Inherited], list[Problem]]:
    """Return every model with what it inherits, and what does not hold together.

    Of a model that has faults of its own, or from one that it extends, only these are told.
    """
    parsed, document = validated.file, validated.document
    assert parsed is not None
    own = {name: [*check_entry(name, entry, document)] for name, entry in parsed.models.items()}
    models, circles = inherit(parsed, document)
    problems = [*circles, *check_pairs(parsed, document), *check_track(parsed, document)]
    for name, entry_problems in own.items():
        problems += entry_problems
        if name in models and not (
            validated.lacks(name) or any(own.get(ancestor) for ancestor in validated.lineage(name))
        ):
            problems += check_model(models[name], document)
    return models, problems
