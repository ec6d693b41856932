"""Trust: which parts of a guard file need it, and whether the user gave it to this file.

A guard file is trusted if the user named it (``--config``), passed ``--allow-code``, or it came
with evalguard. One that was only found in the working folder is not: a cloned repository must not
run code, reach a server, read files outside, or touch what is the user's, because somebody
evaluates a model in it. It may say what ``HARMLESS_KEYS`` and ``CHECKED_KEYS`` list, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evalguard.config.guard import CodeUse, Guard
from evalguard.config.guard_document import Document
from evalguard.config.guard_shape import GuardFile, ModelEntry, SettingEntry, setting_target
from evalguard.config.harmless_parts import (
    CHECKED_KEYS,
    HARMLESS_KEYS,
    NEEDS_TRUST,
    Surroundings,
    argument_danger,
    execution_danger,
    model_type_danger,
    target_danger,
)
from evalguard.config.inheritance import Inherited
from evalguard.config.task_file_code import find_task_code, is_task_file
from evalguard.config.validation import dotted_key
from evalguard.config.yaml_nodes import Loc
from evalguard.core.settings import Variant
from evalguard.errors import UsageError

_UNKNOWN = "is not known to be harmless"


def model_uses(model: Inherited, document: Document) -> tuple[CodeUse, ...]:
    """Return everything of a model that needs trust, with its place."""
    return tuple(
        CodeUse(what=what, where=document.where(model.place(*loc)))
        for what, loc in _model_uses(model.entry)
    )


def file_uses(parsed: GuardFile, document: Document, around: Surroundings) -> tuple[CodeUse, ...]:
    """Return everything of a guard file beside its models that needs trust, with its place."""
    found = _key_uses(parsed, "", (), around)
    return tuple(CodeUse(what=what, where=document.where(loc)) for what, loc in found)


def surroundings_of(guard_file: Path, *, in_configs: bool) -> Surroundings:
    """Return where a guard file lies; the files of ``configs/`` belong to the folder above."""
    folder = guard_file.absolute().parent
    return Surroundings(folder=folder, root=folder.parent if in_configs else folder)


def require_code_allowed(guard: Guard, variant: Variant) -> None:
    """Check that the user trusts this guard file with what it and this variant of it need.

    Raises:
        UsageError: if not; names what would be done, where it is written, and how to allow it.
    """
    if guard.code_allowed:
        return
    of_model = guard.code_uses.get(variant.name, ())
    uses = [*of_model, *guard.file_uses, *_task_uses(guard)]
    if uses:
        listed = "\n".join(dict.fromkeys(f"  {use.where}: {use.what}" for use in uses))
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


def _key_uses(
    entry: BaseModel, path: str, loc: Loc, around: Surroundings
) -> Iterator[tuple[str, Loc]]:
    """Yield what needs trust of an entry and of all that stands in it, key by key.

    Args:
        path: the entry as the tables of ``harmless_parts`` write it, with a dot behind it.
    """
    for name, part in (entry.__pydantic_extra__ or {}).items():
        yield from _key_uses(part, f"{path}*.", (*loc, name), around)
    for name, field in type(entry).model_fields.items():
        if name not in entry.model_fields_set:
            continue
        value, key = getattr(entry, name), field.alias or name
        here, place = f"{path}{key}", (*loc, key)
        if here == "models" or here in HARMLESS_KEYS:
            continue
        if here in CHECKED_KEYS:
            if danger := _danger(here, value, around):
                yield f"{dotted_key(place)} {danger}", place
        elif parts := _entries(value, here, place):
            for part, there, where in parts:
                yield from _key_uses(part, there, where, around)
        elif not _says_nothing(value, field):
            danger = NEEDS_TRUST.get(here, _UNKNOWN)
            yield f"{dotted_key(place)} {danger}", place


def _entries(value: object, path: str, place: Loc) -> list[tuple[BaseModel, str, Loc]]:
    """The entries that a key holds: itself, or each of a list or mapping."""
    if isinstance(value, BaseModel):
        return [(value, "gate." if path == "pairs.*.gate" else f"{path}.", place)]
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    return [
        (part, f"{path}.*.", (*place, key)) for key, part in items if isinstance(part, BaseModel)
    ]


def _says_nothing(value: object, field: FieldInfo) -> bool:
    # pydantic 2.10 calls no factory without it, whatever the factory takes
    default = field.get_default(call_default_factory=True, validated_data={})
    return value is False or value == default or value in (None, [], {}, ())


def _danger(path: str, value: Any, around: Surroundings) -> str:
    """What speaks against the value of a checked key of the file; "" for a harmless one."""
    if path in ("run.track", "run.history"):
        return ""  # asked where they are used: --track and --history take their place
    if path == "run.execution":
        return execution_danger(value)
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    named = [text for text in texts if isinstance(text, str)]
    if path.endswith("tasks"):
        named = list(filter(is_task_file, named))
        around = Surroundings(folder=around.root, root=around.root)
    return next(filter(None, map(around.path_danger, named)), "")


def _model_uses(entry: ModelEntry) -> Iterator[tuple[str, Loc]]:
    for name, field in ModelEntry.model_fields.items():
        path = f"models.*.{name}"
        value = getattr(entry, name) if name in entry.model_fields_set else None
        # A list that is written says something, even if it is empty.
        silent = value is None if name == "inputs" else _says_nothing(value, field)
        if path in HARMLESS_KEYS or path in CHECKED_KEYS or silent:
            continue
        yield _model_danger(name, value), (name,)
    if why := model_type_danger(entry.model):
        yield f"model type {entry.model} {why}", ("model",)
    else:
        for name, value in entry.model_args.items():
            if why := argument_danger(name, value):
                yield f"model_args.{name} {why}", ("model_args", name)
    for name, setting in entry.settings.items():
        if why := _setting_use(name, setting):
            yield f"setting '{name}' {why}", ("settings", name)


def _model_danger(key: str, value: Any) -> str:
    """What a key of a model does that needs trust, with what it names."""
    match key:
        case "build":
            return f"the build recipe {f'calls {value.call}' if value.call else 'runs a command'}"
        case "serve":
            return f"starts the server {value.command[0]}"
        case "python":
            return f"the model runs in {value}"
        case "requirements":
            return f"installs {', '.join(value)}"
    return f"{key} {NEEDS_TRUST.get(f'models.*.{key}', _UNKNOWN)}"


def _setting_use(name: str, setting: SettingEntry) -> str:
    unknown = [
        k for k in setting.model_fields_set if f"models.*.settings.*.{k}" not in HARMLESS_KEYS
    ]
    if unknown:
        return f"has {unknown[0]}, which {_UNKNOWN}"
    target = setting_target(name, setting)
    if target.kind == "call":
        return f"calls {target.path}"
    if target.kind == "package":
        return f"installs {target.path}"
    values = (setting.reference, setting.candidate, *setting.alternatives)
    whys = (target_danger(target, value) for value in values)
    why = next(filter(None, whys), "")
    return f"sets {target}, which {why}" if why else ""
