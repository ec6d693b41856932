"""Guard files checked without loading a model: names every mistake that can be seen so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evalguard.config.absent_paths import absent_paths
from evalguard.config.embedded import embedded_tasks
from evalguard.config.guard import Guard
from evalguard.config.guard_search import load_guards
from evalguard.config.guard_shape import readable_target
from evalguard.config.inheritance import Inherited
from evalguard.config.local_paths import resolve_path, resolve_value
from evalguard.config.problems import Problem
from evalguard.config.validation import ValidatedFile
from evalguard.config.yaml_nodes import Loc
from evalguard.core.settings import Value
from evalguard.errors import GuardFileError, UsageError
from evalguard.harness.chat_file import read_chat_file
from evalguard.harness.tasks import find_task_faults
from evalguard.models.argument_checks import check_argument, check_model_type
from evalguard.models.arguments import HF_TYPES, read_device
from evalguard.report.words.plain_text import printable


def check_guards(files: Sequence[Path]) -> list[str]:
    """Return a line for each file: what it defines. Without files, those that are found are read.

    Raises:
        UsageError: no file is named, and there is none here.
        GuardFileError: a file cannot be used, or names a path that is not there, with every problem
            of every such file.
    """
    lines: list[str] = []
    errors: list[GuardFileError] = []
    for file in dict.fromkeys(files) or (None,):
        try:
            found = load_guards(
                file, cwd=Path.cwd(), allow_code=False, check=_find_problems
            ).require_own()
        except GuardFileError as error:
            errors.append(error)
        else:
            lines += map(_guard_line, found.guards)
    if errors:
        raise _join_errors(errors)
    return lines


def _find_problems(file: ValidatedFile, models: Mapping[str, Inherited]) -> Iterator[Problem]:
    """Yield what is wrong with a guard file beyond its form: what it names is not to be had so."""
    assert file.file is not None
    document = file.document
    yield from absent_paths(file, models.values())
    for model in models.values():
        if not file.lacks(model.name, "model"):
            yield from find_model_problems(model, file)
    if file.file.run.device is not None:
        try:
            read_device(file.file.run.device)
        except UsageError as error:
            yield document.problem(("run", "device"), f"run.{error}", error.hint)
    yield from _check_tasks(file)
    yield from _check_requests(file)


def find_model_problems(model: Inherited, file: ValidatedFile) -> Iterator[Problem]:
    """Yield an unknown model type, arguments that it does not take, and values they cannot have."""
    entry, document = model.entry, file.document
    try:
        check_model_type(entry.model)
    except UsageError as error:
        yield document.problem(model.place("model"), str(error), error.hint)
        return
    built = entry.build is not None or file.lacks(model.name, "build")
    for loc, name, value in _arguments(model):
        try:
            check_argument(
                _type_there(model),
                name,
                value,
                folder=None if built else _model_folder(model, document.folder),
                code_allowed=entry.trust_remote_code,
            )
        except UsageError as error:
            yield document.problem(loc, str(error), error.hint)


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
    entry = model.entry
    own = bool(entry.python or entry.requirements) and entry.serve is None
    return "transformers" if own and entry.model in HF_TYPES else entry.model


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
    named = [resolve_path(one, document.folder) for one in file.file.include_path]
    folders = [one for one in named if os.path.isdir(one)]
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
    told = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers]
    return printable(f"{guard.label}: {', '.join(told)}")


def _join_errors(errors: Sequence[GuardFileError]) -> GuardFileError:
    first, *others = errors
    if not others:
        return first
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return GuardFileError(
        first.what,
        where=first.where,
        others=[*first.others, *map(str, others)],
        hint="\n".join(hints),
    )
