"""What there is: guard files, models, tasks, the schema and the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from evalguard.config import embedded_tasks, load_guards, schema, write_template
from evalguard.errors import UsageError, nearest
from evalguard.harness import task_names
from evalguard.pipeline.guards import find_guards
from evalguard.pipeline.options import CompareOptions
from evalguard.redaction import redacted, shown_value
from evalguard.report.plain_text import printable
from evalguard.settings import Value

__all__ = [
    "TaskList",
    "describe_models",
    "guard_schema",
    "list_tasks",
    "render_models",
    "render_tasks",
    "write_template",
]

# lm-eval has no name that begins so: its thousands of files need not be read.
_OWN_PREFIX = "evalguard_"


def guard_schema() -> dict[str, Value]:
    """Return the JSON Schema of guard files."""
    return schema()


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
                    "model_args": redacted(dict(variant.model_args)),
                    "settings": settings,
                    "description": guard.descriptions.get(name, ""),
                    "candidates": [p.candidate for p in guard.pairs if p.base == name],
                }
            )
    return models


def render_models(models: Sequence[dict[str, Value]]) -> str:
    """Return the models as text, one paragraph each."""
    return "\n\n".join(_paragraph(model) for model in models)


def _paragraph(model: dict[str, Value]) -> str:
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
    found = sorted(name for name in names if fnmatchcase(name, pattern))
    if not found:
        raise UsageError(
            f"no task matches '{pattern}'{nearest(pattern, names)}",
            hint="* stands for any text: evalguard tasks 'lambada*'; --include-path adds a folder",
        )
    return TaskList(tuple(found), notes)
