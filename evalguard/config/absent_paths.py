"""What a guard file names on this machine and what is not there.

No error of loading: a guard file may be read where only some of its models are. ``evalguard
check`` tells of it. ``os.path`` is asked, not ``Path``, which raises where a text can be no path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from evalguard.config.guard_shape import readable_target
from evalguard.config.inheritance import Inherited
from evalguard.config.local_paths import PATH_ARGS, is_written_as_path, resolve_path
from evalguard.config.problems import Problem
from evalguard.config.validation import ValidatedFile
from evalguard.config.yaml_nodes import Loc
from evalguard.core.settings import Value

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
    of_pairs = ((("pairs", n, "requests"), one.requests) for n, one in enumerate(parsed.pairs))
    for loc, named in ((("requests",), parsed.requests), *of_pairs):
        if named is not None and not os.path.isfile(resolve_path(named, document.folder)):
            yield document.problem(
                loc,
                f"requests: there is no file {named}",
                "a JSONL file of chat requests; a relative path starts at the guard file",
            )
    told: dict[tuple[Loc, str], Problem] = {}
    for model in models:
        for loc, what, value in _named(model, built=validated.lacks(model.name, "build")):
            if isinstance(value, str) and _is_absent(value, document.folder):
                found = document.problem(loc, f"{what}: there is nothing at {value}", _HINT)
                told.setdefault((loc, value), found)
        for name, inside, place in _absent_inside(model, document.folder):
            loc = model.place("model_args", name)
            message = f"{name} of '{model.name}': there is no {inside} in {place}"
            told.setdefault((loc, inside), document.problem(loc, message))
    yield from told.values()


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
    place = arguments.get("pretrained")
    if not isinstance(place, str) or not os.path.isdir(resolve_path(place, folder)):
        return
    for name in ("subfolder", "gguf_file", "file"):
        part = arguments.get(name)
        if isinstance(part, str) and not any(
            os.path.exists(resolve_path(part, at)) for at in (resolve_path(place, folder), folder)
        ):
            yield name, part, place


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
