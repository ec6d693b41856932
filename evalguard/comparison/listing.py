"""What there is: guard files, models, tasks, the schema and the template."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from evalguard.comparison.needed_guards import find_guards
from evalguard.config.guard import Guard
from evalguard.config.guard_document import Loc, Problem
from evalguard.config.guard_loading import ValidatedFile, absent_paths
from evalguard.config.guard_search import embedded_folder, embedded_tasks, load_guards
from evalguard.config.guard_shape import readable_target
from evalguard.config.guard_writing import build_guard_schema, write_template
from evalguard.config.local_paths import resolve_path, resolve_value
from evalguard.config.options import CompareOptions
from evalguard.config.variants import Inherited
from evalguard.core.redaction import redact_value, shown_value
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, GuardFileError, UsageError, nearest
from evalguard.harness.task_options import read_chat_file
from evalguard.harness.tasks import find_task_faults, task_names
from evalguard.models.argument_checks import check_argument, check_model_type
from evalguard.models.arguments import HF_TYPES, read_device
from evalguard.models.quantised_folders import check_quantisation
from evalguard.models.runtimes.types import RUNTIME_TYPES
from evalguard.page.safe_text import printable
from evalguard.report.schemas import SCHEMAS


def find_demo_guard() -> Path:
    """Return the path of the demo's guard file."""
    return embedded_folder() / "configs" / "demo.yaml"


def check_guards(files: Sequence[Path], *, note: Callable[[str], None]) -> list[str]:
    """Return a line for each file: what it defines. Without files, those that are found are read.

    Args:
        note: takes what could not be checked, with its line.

    Raises:
        UsageError: no file is named, and there is none here.
        GuardFileError: a file cannot be used, or names a path that is not there, with every problem
            of every such file.
    """
    lines: list[str] = []
    errors: list[GuardFileError] = []
    for file in dict.fromkeys(files) or (None,):
        try:
            guards = load_guards(
                file, cwd=Path.cwd(), allow_code=False, check=partial(_find_problems, note=note)
            ).require_own()
        except GuardFileError as error:
            errors.append(error)
        else:
            lines += map(_guard_line, guards.guards)
    if errors:
        raise _join_errors(errors)
    return lines


def _find_problems(
    file: ValidatedFile, models: Mapping[str, Inherited], *, note: Callable[[str], None]
) -> Iterator[Problem]:
    """Yield what is wrong with a guard file beyond its form: what it names is not to be had so."""
    assert file.file is not None
    document = file.document
    yield from absent_paths(file, models.values())
    for model in models.values():
        if not file.lacks(model.name, "model"):
            yield from find_model_problems(model, file, note=note)
    if device := file.file.run.model_dump()["device"]:
        try:
            read_device(device)
        except UsageError as error:
            yield document.problem(("run", "device"), f"run.{error}", error.hint)
    yield from _check_tasks(file)
    yield from _check_requests(file)


def find_model_problems(
    model: Inherited, file: ValidatedFile, *, note: Callable[[str], None]
) -> Iterator[Problem]:
    """Yield an unknown model type, arguments that it does not take, and values they cannot have.

    Args:
        note: takes what could not be checked, with its line.
    """
    entry, document = model.entry, file.document
    try:
        check_model_type(entry.model)
    except UsageError as error:
        yield document.problem(model.place("model"), str(error), error.hint)
        return
    built = entry.build is not None or file.lacks(model.name, "build")
    for loc, name, value in _arguments(model):
        try:
            unchecked = check_argument(
                _type_there(model),
                name,
                value,
                folder=None if built else _model_folder(model, document.folder),
                code_allowed=entry.trust_remote_code,
                runs_here=not _own_environment(model),
            )
            if unchecked:
                note(f"{document.problem(loc, '').where}: {unchecked}")
        except UsageError as error:
            yield document.problem(loc, str(error), error.hint)
    if not (built or _own_environment(model)):
        _note_unread_weights(model, file, note)


def _note_unread_weights(
    model: Inherited, file: ValidatedFile, note: Callable[[str], None]
) -> None:
    """Say of packed weights that nothing in this environment reads what does.

    That is no mistake of the guard file: it may be meant for another machine.
    """
    folder = _model_folder(model, file.document.folder)
    if model.entry.model not in HF_TYPES or folder is None:
        return
    arguments = model.entry.model_args
    named = {**arguments, "quantization_config": None}  # whose values are checked by themselves
    try:
        check_quantisation(str(arguments["pretrained"]), folder / "config.json", named)
    except UsageError as error:
        location = file.document.problem(model.place("model_args", "pretrained"), "").where
        note(f"{location}: {error}; {error.hint}")


def _arguments(model: Inherited) -> Iterator[tuple[Loc, str, Value]]:
    """Each model_arg of a model, and each value that a setting may give one, with its place."""
    for name, value in model.entry.model_args.items():
        if name != "trust_remote_code":  # in the wrong place, which is told already
            yield model.place("model_args", name), name, value
    for key, setting in model.entry.settings.items():
        target = readable_target(key, setting)
        if target is None or target.kind != "model_args" or target.path == "trust_remote_code":
            continue
        name, _, inner = target.path.partition(".")
        for value in (setting.reference, setting.candidate, *setting.alternatives):
            yield model.place("settings", key), name, None if inner else value


def _type_there(model: Inherited) -> str:
    """The model type, as the environment has it in which the model runs."""
    named = model.entry.model
    return "transformers" if _own_environment(model) and named in HF_TYPES else named


def _own_environment(model: Inherited) -> bool:
    entry = model.entry
    return bool(entry.python or entry.requirements) and entry.serve is None


def _model_folder(model: Inherited, folder: Path) -> Path | None:
    """The folder of a Hugging Face model, where it is here."""
    arguments = model.entry.model_args
    named = resolve_value("pretrained", arguments.get("pretrained"), folder)
    path = Path(str(named)) / str(arguments.get("subfolder") or "")
    return path if named and os.path.isfile(path / "config.json") else None


def _check_tasks(file: ValidatedFile) -> Iterator[Problem]:
    """Yield tasks that there are none of, and lines of their data that are none."""
    assert file.file is not None
    document = file.document
    places: dict[str, Loc] = {}
    of_pairs = ((("pairs", at), pair.tasks) for at, pair in enumerate(file.file.pairs))
    for loc, names in (((), file.file.tasks), *of_pairs):
        for at, name in enumerate(names):
            places.setdefault(name, (*loc, "tasks", at))
    named = [resolve_path(path, document.folder) for path in file.file.include_path]
    folders = [folder for folder in named if os.path.isdir(folder)]
    complete = len(folders) == len(named) and ("include_path",) not in file.dropped
    try:
        for fault in find_task_faults(tuple(places), (*embedded_tasks(), *folders)):
            if fault.file is not None:
                label = os.path.relpath(fault.file)
                yield Problem(label=label, line=fault.line, message=fault.message)
            elif complete:  # else it may be in the folder that is not there
                yield document.problem(places[fault.task], fault.message, fault.hint)
    except UsageError as error:
        yield document.problem(("include_path",), str(error), error.hint)


def _check_requests(file: ValidatedFile) -> Iterator[Problem]:
    """Yield what is wrong with files of chat requests that are there."""
    assert file.file is not None
    of_pairs = ((("pairs", at), pair.requests) for at, pair in enumerate(file.file.pairs))
    for loc, named in (((), file.file.requests), *of_pairs):
        path = None if named is None else resolve_path(named, file.document.folder)
        if path is None or not os.path.isfile(path):
            continue
        try:
            read_chat_file(path)
        except UsageError as error:
            yield file.document.problem((*loc, "requests"), str(error), error.hint)


def _guard_line(guard: Guard) -> str:
    numbers = (
        (len(guard.variants), "model"),
        (len(guard.pairs), "pair"),
        (sum(len(variant.settings) for variant in guard.variants.values()), "setting"),
    )
    counts = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers]
    return printable(f"{guard.label}: {', '.join(counts)}")


def _join_errors(errors: Sequence[GuardFileError]) -> GuardFileError:
    first, *remaining = errors
    if not remaining:
        return first
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return GuardFileError(
        first.what,
        where=first.where,
        others=[*first.others, *map(str, remaining)],
        hint="\n".join(hints),
    )


__all__ = [
    "TaskList",
    "describe_models",
    "describe_types",
    "list_tasks",
    "read_named_schema",
    "render_models",
    "render_tasks",
    "render_types",
    "write_template",
]
# lm-eval has no name that begins so: its thousands of files need not be read.
_OWN_PREFIX = "evalguard_"


def read_named_schema(name: str) -> dict[str, Value]:
    """Return the JSON Schema of guard files ("guard"), or of a report by the name of its contract.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "guard":
        return build_guard_schema()
    if name not in SCHEMAS:
        raise UsageError(
            f"there is no schema '{name}'{nearest(name, ['guard', *SCHEMAS])}",
            hint=f"schemas: {', '.join(['guard', *SCHEMAS])}",
        )
    return SCHEMAS[name]()


def describe_models(config: Path | None) -> list[dict[str, Value]]:
    """Return every model of the guard files, as plain data."""
    guards = load_guards(config, cwd=Path.cwd(), allow_code=False)
    models: list[dict[str, Value]] = []
    for guard in guards.guards:
        for name, variant in guard.variants.items():
            settings: list[Value] = [
                {
                    "name": setting.name,
                    "target": str(setting.target),
                    "reference": shown_value(setting.reference, setting),
                    "candidate": shown_value(setting.candidate, setting),
                }
                for setting in variant.settings
            ]
            models.append(
                {
                    "name": name,
                    "guard_file": guard.label,
                    "model": variant.model,
                    "model_args": redact_value(dict(variant.model_args)),
                    "settings": settings,
                    "description": guard.descriptions.get(name, ""),
                    "candidates": [p.candidate for p in guard.pairs if p.base == name],
                }
            )
    return models


def render_models(models: Sequence[dict[str, Value]]) -> str:
    """Return the models as text, one paragraph each."""
    return "\n\n".join(_model_paragraph(model) for model in models)


def read_skill() -> str:
    """Return the page that tells coding agents how evalguard is used.

    Raises:
        EvalguardError: the installation is damaged.
    """
    page = embedded_folder() / "skills" / "evalguard" / "SKILL.md"
    try:
        return page.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise EvalguardError(
            f"evalguard's own page is missing: {page}", hint="install evalguard again"
        ) from error


def describe_types() -> list[dict[str, Value]]:
    """Return evalguard's own model types as JSON values: name, purpose, what is missing here."""
    types: list[dict[str, Value]] = [
        {
            "type": name,
            "purpose": kind.purpose,
            "missing": list(kind.missing),
            "requirements": list(kind.requirements),
        }
        for name, kind in RUNTIME_TYPES.items()
    ]
    purpose = "llama.cpp's server: exact log-probabilities, asked token by token"
    return [
        *types,
        {"type": "llama_server", "purpose": purpose, "missing": [], "requirements": []},
    ]


def render_types(types: Sequence[dict[str, Value]]) -> str:
    """Return the types as text, and where lm-eval's stand."""
    lines = ["hf", "  ready: Hugging Face models, by evalguard's fast scorer"]
    for entry in types:
        missing, needed = entry["missing"], entry["requirements"]
        assert isinstance(missing, list)
        assert isinstance(needed, list)
        state = "ready" if not missing else f"pip install {' '.join(map(str, needed))}"
        lines += [str(entry["type"]), f"  {state}: {entry['purpose']}"]
    lines += [
        "",
        "Any model of a guard file may have an environment of its own instead",
        "(requirements: [PACKAGE, ...]). lm-eval's other types run as lm-eval loads them.",
    ]
    return "\n".join(lines)


def _model_paragraph(model: dict[str, Value]) -> str:
    arguments = model["model_args"]
    settings = model["settings"]
    assert isinstance(arguments, dict)
    assert isinstance(settings, list)
    lines = [f"{model['name']}  ({model['model']}, {model['guard_file']})"]
    if model["description"]:
        lines.append(f"  {model['description']}")
    lines += [f"  {name}: {value}" for name, value in arguments.items()]
    for setting in settings:
        assert isinstance(setting, dict)
        change = f"{setting['reference']} -> {setting['candidate']}"
        lines.append(f"  setting {setting['name']}: {change}  [{setting['target']}]")
    candidates = model["candidates"]
    assert isinstance(candidates, list)
    lines += [f"  pair: --base {model['name']} --cand {candidate}" for candidate in candidates]
    return "\n".join(printable(line) for line in lines)


def render_tasks(names: Sequence[str]) -> str:
    """Return names of tasks as text, one a line."""
    return "\n".join(printable(name) for name in names)


@dataclass(frozen=True, slots=True)
class TaskList:
    """Names of tasks, groups and tags, sorted; ``notes`` say what was left out of the search."""

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def list_tasks(pattern: str, *, config: Path | None, include_path: Sequence[Path]) -> TaskList:
    """Return all tasks, groups and tags that match.

    Raises:
        UsageError: if there is none, with the nearest name.
    """
    guards, notes = find_guards((), CompareOptions(config=config), cwd=Path.cwd())
    of_guards = [path for guard in guards.guards for path in guard.include_paths]
    paths = (*embedded_tasks(), *of_guards, *include_path)
    names = task_names(
        tuple(dict.fromkeys(path.resolve() for path in paths)),
        lm_eval=not pattern.startswith(_OWN_PREFIX),
    )
    matching = sorted(name for name in names if fnmatchcase(name, pattern))
    if not matching:
        raise UsageError(
            f"no task matches '{pattern}'{nearest(pattern, names)}",
            hint="* stands for any text: evalguard tasks 'lambada*'; --include-path adds a folder",
        )
    return TaskList(tuple(matching), notes)
