"""Trust: which parts of a guard file need it, and whether the user gave it to this file.

A guard file is trusted if the user named it (``--config``), passed ``--allow-code``, or it came
with evalguard. One that was only found in the working folder is not: a cloned repository must not
run code, reach a server or read files outside because somebody evaluates a model in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from evalguard.config.guard import CodeUse, Guard
from evalguard.config.guard_document import Document
from evalguard.config.guard_shape import SettingEntry, setting_target
from evalguard.config.harmless_parts import (
    argument_danger,
    attribute_danger,
    config_danger,
    env_danger,
    model_type_danger,
)
from evalguard.config.inheritance import Inherited
from evalguard.config.task_file_code import find_task_code, is_task_file
from evalguard.config.yaml_nodes import Loc
from evalguard.core.settings import Target, Value, Variant
from evalguard.errors import UsageError


def code_uses(model: Inherited, document: Document) -> tuple[CodeUse, ...]:
    """Return everything of a model that needs trust, with its place."""
    return tuple(
        CodeUse(what=what, where=document.where(model.place(*loc))) for what, loc in _uses(model)
    )


def require_code_allowed(guard: Guard, variant: Variant) -> None:
    """Check that the user trusts this guard file with what this variant of it needs.

    Raises:
        UsageError: if not; names what would run, where it is written, and how to allow it.
    """
    if guard.code_allowed:
        return
    uses = [*guard.code_uses.get(variant.name, ()), *_task_uses(guard)]
    if uses:
        listed = "\n".join(f"  {use.where}: {use.what}" for use in uses)
        raise UsageError(
            f"'{variant.name}' needs code or more trust than {guard.label} has, which was found, "
            f"not named:\n{listed}",
            hint=f"if you trust it: --config {guard.label}, or --allow-code",
        )


def _task_uses(guard: Guard) -> Iterator[CodeUse]:
    """Yield what the guard file's task folders and task files would run or read."""
    root = Path.cwd()
    for folder in guard.include_paths:
        if found := find_task_code(folder, root=root):
            yield CodeUse(what=f"include_path: {found}", where=guard.include_where)
    tasks = dict.fromkeys([*guard.tasks, *(task for pair in guard.pairs for task in pair.tasks)])
    for task in filter(is_task_file, tasks):
        # lm-eval takes a task's name for a file of the working folder, if there is one.
        if found := find_task_code(Path(task), root=root):
            yield CodeUse(what=f"task file: {found}", where=guard.label)


def _uses(model: Inherited) -> Iterator[tuple[str, Loc]]:
    entry = model.entry
    if entry.trust_remote_code:
        yield "trust_remote_code runs the model's own Python code", ("trust_remote_code",)
    if entry.allow_pickle:
        yield "allow_pickle loads pickled weights, which can run code", ("allow_pickle",)
    if entry.build is not None:
        does = f"calls {entry.build.call}" if entry.build.call else "runs a command"
        yield f"the build recipe {does}", ("build",)
    if entry.serve is not None:
        yield f"starts the server {entry.serve.command[0]}", ("serve",)
    if entry.python is not None:
        yield f"the model runs in {entry.python}", ("python",)
    if entry.requirements:
        yield f"installs {', '.join(entry.requirements)}", ("requirements",)
    if why := model_type_danger(entry.model):
        yield f"model type {entry.model} {why}", ("model",)
    else:
        for name, value in entry.model_args.items():
            if why := argument_danger(name, value):
                yield f"model_args.{name} {why}", ("model_args", name)
    for name, setting in entry.settings.items():
        if why := _setting_use(setting, setting_target(name, setting)):
            yield f"setting '{name}' {why}", ("settings", name)


def _setting_use(setting: SettingEntry, target: Target) -> str:
    if target.kind == "call":
        return f"calls {target.path}"
    if target.kind == "package":
        return f"installs {target.path}"
    values = (setting.reference, setting.candidate, *setting.alternatives)
    whys = (_value_danger(target, value) for value in values)
    why = next(filter(None, whys), "")
    return f"sets {target}, which {why}" if why else ""


def _value_danger(target: Target, value: Value) -> str:
    if target.kind == "env":
        return env_danger(target.path)
    if target.kind == "model_args":
        return argument_danger(target.path, value)
    if target.kind == "config":
        return config_danger(target.path, value)
    return attribute_danger(target.attribute, value) if target.kind == "attr" else ""
