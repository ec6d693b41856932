"""What there is: guard files, models, tasks, the schema and the template."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from evalguard.config.entries import write_template
from evalguard.config.files import embedded_tasks, load_guards
from evalguard.config.schema import build_guard_schema
from evalguard.conversion.build_digests import changed_since_build
from evalguard.core.amounts import size_text
from evalguard.core.redaction import redact_value, shown_value
from evalguard.core.reports.cache_listings import CacheCheck, CacheListing, CachePruning
from evalguard.core.settings import Value
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED, UsageError, nearest
from evalguard.harness.tasks import task_names
from evalguard.models.runtimes.types import RUNTIME_TYPES
from evalguard.report.cache import cache_document, cache_text
from evalguard.report.schemas import SCHEMAS
from evalguard.report.words.plain_text import printable
from evalguard.run.floor.stored_floors import read_floor
from evalguard.run.options import CompareOptions
from evalguard.run.preflight import find_guards
from evalguard.store.block_cache import (
    BlockCache,
    DivergenceCache,
    ReferenceCache,
    ScoreCache,
    default_cache_dir,
)
from evalguard.store.cache_inventory import take_inventory
from evalguard.store.cache_items import CacheItem, find_items
from evalguard.store.damaged_files import set_aside
from evalguard.store.fact_cache import FactCache
from evalguard.store.file_lock import FileLock
from evalguard.store.floor_store import FloorStore
from evalguard.store.pruning import PruneRules, prune
from evalguard.store.token_budgets import BudgetStore
from evalguard.worker.environments import (
    KeptEnvironment,
    list_environments,
    remove_environments,
)

__all__ = [
    "KeptEnvironment",
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


# CacheCheck: everything that is kept is read, and what is not whole is set aside.


_BLOCKS: Mapping[str, type[BlockCache[Any]]] = {
    "scores": ScoreCache,
    "references": ReferenceCache,
    "divergences": DivergenceCache,
}


def check_cache(folder: Path) -> CacheCheck:
    """Read all that a cache folder holds but logs, which nothing relies on."""
    blocks = {kind: cache(folder / kind) for kind, cache in _BLOCKS.items()}
    for cache in blocks.values():
        cache.problems.clear()  # who may write into the cache is no damage
    read = others = in_use = 0
    problems: list[str] = []
    for item in find_items(folder):
        cache = blocks.get(item.kind)  # type: ignore[assignment]
        if item.state != "kept":
            continue
        if cache is not None and item.folder.parent == cache.current:
            read += 1
            whole = cache.get(item.folder.name, item.path.stem, mark=False) is not None
            in_use += not whole and not cache.problems and item.path.exists()
            problems += cache.problems
            cache.problems.clear()
        elif item.kind in _CHECKS_BY_KIND:
            reason = _CHECKS_BY_KIND[item.kind](item, folder)
            others += reason is not None
            if reason:
                problems.append(f"{item.path} ({item.kind}): {_set_aside(item, reason)}")
    return CacheCheck(
        folder=str(folder), checked=read, others=others, problems=tuple(problems), in_use=in_use
    )


def _check_fact(item: CacheItem, folder: Path) -> str | None:
    facts = FactCache(folder / "facts")
    if item.folder.parent != facts.current:
        return None  # of another version
    whole = facts.get(item.folder.name, item.path.stem) is not None or not item.path.exists()
    return "" if whole else "it is not what was written"


def _check_budget(item: CacheItem, folder: Path) -> str | None:
    whole = BudgetStore(folder / "devices").is_whole(item.path)
    return "" if whole else "it does not hold what its name says"


def _check_floor(item: CacheItem, folder: Path) -> str | None:
    model, task = item.path.parent.parent.name, item.path.parent.name
    store = FloorStore(folder / "floors")
    content = store.get(model, task, item.path.stem)
    try:
        read_floor(content or {}, str(item.path))
    except UsageError as error:
        return "; ".join(store.problems) or str(error)
    return ""


def _check_build(item: CacheItem, folder: Path) -> str | None:  # noqa: ARG001 - as the others
    changed = changed_since_build(item.path)
    return None if changed is None else "it was changed since it was built" if changed else ""


def _set_aside(item: CacheItem, reason: str) -> str:
    """Set a damaged file or build aside, unless somebody uses it; say what was done."""
    with ExitStack() as stack:
        for path in item.locks:
            with contextlib.suppress(OSError):  # no locks here: then nobody is known to use it
                lock = FileLock.tried(path)
                if lock is None:
                    return f"{reason}; it stays where it is: another process uses it"
                stack.callback(lock.release, remove=False)
        return f"{reason}; {set_aside(item.path)}"


# What is wrong with it; "": nothing; None: it is not known what it should be.
_CHECKS_BY_KIND: Mapping[str, Callable[[CacheItem, Path], str | None]] = {
    "facts": _check_fact,
    "devices": _check_budget,
    "floors": _check_floor,
    "builds": _check_build,
}


# Environments of models.


def find_environments(cache_dir: Path | None) -> list[KeptEnvironment]:
    """Return the environments that were made for models, the most recently used first."""
    return list_environments(cache_dir or default_cache_dir())


def drop_environments(
    cache_dir: Path | None, names: Sequence[str], *, older_than: float | None = None
) -> list[KeptEnvironment]:
    """Remove environments; return those that are gone.

    Raises:
        UsageError: a name that is none's.
    """
    return remove_environments(cache_dir or default_cache_dir(), names, older_than=older_than)


def render_environments(found: Sequence[KeptEnvironment]) -> str:
    """Return environments as text, two lines each."""
    lines = []
    for one in found:
        lines += [
            f"{Path(one.path).name[:16]}  Python {one.python}, {size_text(one.size)}",
            f"  {', '.join(one.requirements)}",
        ]
    return "\n".join(lines) or "There are none."


# The cache, looked into, checked and cleared out.


@dataclass(frozen=True, slots=True)
class CacheResult:
    """What was found or done, for a person and for a program."""

    found: CacheListing | CacheCheck | CachePruning

    @property
    def exit_code(self) -> int:
        """1 where something is damaged, or could not be removed."""
        odd = isinstance(self.found, CacheCheck) and self.found.problems
        odd = odd or (isinstance(self.found, CachePruning) and self.found.failed)
        return EXIT_REGRESSED if odd else EXIT_PASSED

    def to_json(self) -> str:
        """Return one JSON document."""
        return json.dumps(cache_document(self.found), indent=2)

    def render(self, *, width: int, color: bool) -> str:
        """Return text for a terminal."""
        return cache_text(self.found, width=width, color=color)


def list_cache(cache_dir: Path | None) -> CacheResult:
    """Return what lies in the cache.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(take_inventory(_cache_folder(cache_dir)))


def verify_cache(cache_dir: Path | None) -> CacheResult:
    """Read all that is kept; what is damaged is set aside.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(check_cache(_cache_folder(cache_dir)))


def prune_cache(cache_dir: Path | None, rules: PruneRules, *, dry_run: bool) -> CacheResult:
    """Remove what the rules say.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(prune(_cache_folder(cache_dir), rules, now=time.time(), dry_run=dry_run))


def prune_rules(
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    model: str | None = None,
    damaged: bool = False,
    everything: bool = False,
) -> PruneRules:
    """Return rules of what is to go; see ``PruneRules``."""
    return PruneRules(
        older_than=older_than,
        max_size=max_size,
        model=model or "",
        damaged=damaged,
        everything=everything,
    )


def _cache_folder(cache_dir: Path | None) -> Path:
    folder = (cache_dir or default_cache_dir()).expanduser().absolute()
    if cache_dir is not None and not folder.is_dir():
        raise UsageError(f"there is no cache folder {folder}", hint="--cache-dir names one")
    return folder
