"""What there is: guard files, models, tasks, the schema and the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from evalguard.config.embedded import embedded_folder, embedded_tasks
from evalguard.config.guard_schema import build_guard_schema
from evalguard.config.guard_search import load_guards
from evalguard.config.guard_template import write_template
from evalguard.core.redaction import redact_value, shown_value
from evalguard.core.settings import Value
from evalguard.errors import EvalguardError, UsageError, nearest
from evalguard.harness.tasks import task_names
from evalguard.models.runtimes.types import RUNTIME_TYPES
from evalguard.report.schemas import SCHEMAS
from evalguard.report.words.plain_text import printable
from evalguard.run.needed_guards import find_guards
from evalguard.run.options import CompareOptions

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
    for one in types:
        missing, needed = one["missing"], one["requirements"]
        assert isinstance(missing, list)
        assert isinstance(needed, list)
        state = "ready" if not missing else f"pip install {' '.join(map(str, needed))}"
        lines += [str(one["type"]), f"  {state}: {one['purpose']}"]
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
    found = sorted(name for name in names if fnmatchcase(name, pattern))
    if not found:
        raise UsageError(
            f"no task matches '{pattern}'{nearest(pattern, names)}",
            hint="* stands for any text: evalguard tasks 'lambada*'; --include-path adds a folder",
        )
    return TaskList(tuple(found), notes)
