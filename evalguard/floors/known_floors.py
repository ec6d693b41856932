"""Floors that were measured before, held against the drifts of a comparison."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from evalguard.config.options import CompareOptions
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.noise_floor import MetricFloor, TaskDistributionFloor, beside, kl_beside
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of
from evalguard.errors import StoreError, UsageError
from evalguard.floors.floor_report import FLOOR_SCHEMA
from evalguard.report.record_documents import read_record
from evalguard.store.atomic_files import disk_error, make_folder, write_atomically
from evalguard.store.cache_folder import default_cache_dir
from evalguard.store.run_folder import read_result

# Of a score's identity, what makes the model; the rest is how and where it computes.
_MODEL_KEYS = ("model", "weights", "tokenizer", "code", "settings", "dtype")
# model_args that say how or where to compute, or that the effective dtype stands for.
_VARIED_KEYS = frozenset({"attn_implementation", "device", "dtype"})
_COMPUTING_PACKAGES = ("torch", "transformers")


def floor_model_key(description: ModelDescription) -> str:
    """Digest of what makes a model's scores, but for what a floor varies; "" if unproven."""
    identity = description.identity
    if identity is None:
        return ""
    arguments = identity.get("model_args")
    model_args = arguments if isinstance(arguments, Mapping) else {}
    return digest_of(
        {
            **{name: identity.get(name) for name in _MODEL_KEYS},
            "model_args": {k: v for k, v in model_args.items() if k not in _VARIED_KEYS},
        }
    )


def floor_environment(description: ModelDescription) -> dict[str, Value]:
    """What rounding depends on: device, dtype, torch's switches, the packages that compute."""
    packages = description.environment.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    identity = description.identity or {}
    return {
        "device": description.environment.get("device") or description.device,
        "dtype": description.dtype,
        "arithmetic": identity.get("arithmetic"),
        **{name: versions.get(name) for name in _COMPUTING_PACKAGES},
    }


def floor_task_keys(tables: Sequence[ScoreTable]) -> dict[str, str]:
    """Digest per task of its first document, prompt and target, which all its metrics share.

    The number of documents is not a part of it: a floor measured on a few counts for all.
    """
    first: dict[str, ScoreTable] = {}
    for table in tables:
        if table.n and (table.task not in first or table.doc_ids[0] < first[table.task].doc_ids[0]):
            first[table.task] = table
    return {task: _task_key(table) for task, table in first.items()}


def floor_group_keys(keys: Mapping[str, str], comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Digest of the tasks in each group whose aggregate was compared, from theirs."""
    return {
        aggregate.task: digest_of([keys[task] for task in aggregate.subtasks])
        for aggregate in comparisons
        if aggregate.subtasks and all(task in keys for task in aggregate.subtasks)
    }


def _task_key(table: ScoreTable) -> str:
    hashes = (table.doc_hashes[0], table.prompt_hashes[0], table.target_hashes[0])
    return digest_of([table.task, *hashes, table.run.get("generation_kwargs")])


_FLOOR_HINT = "make one with: evalguard floor --base MODEL --json > FILE"
FloorKey = tuple[str, str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFloor:
    """A floor as its document has it: what it belongs to, and its numbers.

    ``floors`` are by (task, filter, metric), ``distributions`` by task.
    """

    model: str
    environment_key: str
    environment: Mapping[str, Value]
    tasks: Mapping[str, str]
    measured: str
    floors: Mapping[FloorKey, MetricFloor]
    distributions: Mapping[str, TaskDistributionFloor] = field(default_factory=dict)


def read_floor(content: Mapping[str, Any], where: str) -> MeasuredFloor:
    """Read a document of ``evalguard.floor/1``.

    Raises:
        UsageError: if it is another kind of document, or lacks what a floor has.
    """
    try:
        if content["schema"] != FLOOR_SCHEMA:
            raise ValueError(f"schema {content['schema']!r} is not {FLOOR_SCHEMA}")
        floors = _read_records(MetricFloor, content, "floors")
        with_kl = {"distribution_floors": (), **content}
        distributions = _read_records(TaskDistributionFloor, with_kl, "distribution_floors")
        return MeasuredFloor(
            model=str(content["model"]["key"]),
            environment_key=str(content["environment_key"]),
            environment=dict(content["environment"]),
            tasks={str(task): str(key) for task, key in content["task_keys"].items()},
            measured=str(content["created"]),
            floors={floor.key: floor for floor in floors},
            distributions={floor.task: floor for floor in distributions},
        )
    except (KeyError, TypeError, ValueError, AttributeError, StoreError) as error:
        what = error if isinstance(error, StoreError) else repr(error)
        raise UsageError(f"{where} is not a measured floor: {what}", hint=_FLOOR_HINT) from error


def read_given_floor(options: CompareOptions) -> MeasuredFloor | None:
    """Read the floor that the user gave; None without one.

    Raises:
        UsageError: if it cannot be read.
    """
    if options.floor is None:
        return None
    content = read_result(options.floor.expanduser(), schema=FLOOR_SCHEMA, hint=_FLOOR_HINT)
    return read_floor(content, str(options.floor))


# Numbers of a floor for which null stands for infinity, and those that are sizes.
_ENDLESS = ("sigma", "sigma_upper", "kl", "kl_upper", "kl_max", "top1_changed")
_SIZES = ("n", "positions", "sigma", "sigma_upper", "document_sd", "top1_changed")


def _read_records(kind: type[T], content: Mapping[str, Any], name: str) -> list[T]:
    return [
        _read_one(kind, entry, f"{name}[{number}]") for number, entry in enumerate(content[name])
    ]


def _read_one(kind: type[T], entry: Mapping[str, Any], where: str) -> T:
    endless = {name: math.inf for name in _ENDLESS if name in entry and entry[name] is None}
    floor: T = read_record(kind, {**entry, **endless}, where)
    for name, value in entry.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{where}.{name} is not a number")
        if name in _SIZES and value is not None and value < 0:
            raise ValueError(f"{where}.{name} is {value!r}, not a size")
    return floor


_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
_KEEPING_HINT = (
    "--cache-dir FOLDER keeps floors elsewhere; --json > FILE and --floor FILE need no folder"
)


class FloorStore:
    """JSON documents in ``<folder>/<model>/<task>/<environment>.json``; the newest one stays.

    Attributes:
        problems: what could not be read so far, one message each, for the caller to show.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def get(self, model: str, task: str, environment: str) -> dict[str, Any] | None:
        """Return the document of a model, a task and an environment (their digests), or None."""
        return self._read(self._path(model, task, environment))

    def others(self, model: str, task: str, environment: str) -> Iterator[dict[str, Any]]:
        """Yield the documents of all other environments."""
        path = self._path(model, task, environment)
        for file in sorted(path.parent.glob("*.json")):
            document = self._read(file) if file != path else None
            if document is not None:
                yield document

    def put(self, model: str, task: str, environment: str, document: Mapping[str, Any]) -> Path:
        """Keep a document, and return its file.

        Raises:
            StoreError: it could not be written; what was there before still is.
        """
        path = self._path(model, task, environment)
        text = json.dumps(document, allow_nan=False, indent=2) + "\n"
        try:
            make_folder(path.parent)
            write_atomically(path, text.encode())
        except OSError as error:
            raise disk_error("keep a floor in", path.parent, error, hint=_KEEPING_HINT) from error
        return path

    def _path(self, model: str, task: str, environment: str) -> Path:
        for name in (model, task, environment):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is not a digest, so it cannot name a floor")
        return self.folder / model / task / f"{environment}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):  # no cache can be where a file is
            return None
        except OSError as error:
            self.problems.append(f"the floor {path} cannot be read: {error.strerror or error}")
            return None
        except (ValueError, RecursionError) as error:
            self.problems.append(f"the floor {path} is not used: it is not JSON ({error})")
            return None
        if not isinstance(content, dict):
            self.problems.append(f"the floor {path} is not used: it is not a JSON object")
            return None
        return content


FLOORS_FOLDER = "floors"


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorComparison:
    """Drifts beside the floors of their base, and notes on floors that do not fit."""

    comparisons: tuple[Comparison, ...]
    distributions: tuple[DistributionComparison, ...]
    notes: tuple[str, ...]


def compare_with_floors(
    comparisons: Sequence[Comparison],
    distributions: Sequence[DistributionComparison],
    tables: Sequence[ScoreTable],
    description: ModelDescription | None,
    options: CompareOptions,
) -> FloorComparison:
    """Hold every drift against the floor of the base, where one is known.

    Args:
        tables: the base's scores.
        description: the base as loaded; None for a finished run, which has no floor of its own.

    Raises:
        UsageError: if ``options.floor`` cannot be read.
    """
    base = _FloorTarget.of(tables, description, comparisons)
    given = read_given_floor(options)
    floors, notes = (
        _find_stored(base, options)
        if given is None
        else _given_floors(given, str(options.floor), base)
    )
    return FloorComparison(
        comparisons=tuple(_add_floor(comparison, floors) for comparison in comparisons),
        distributions=tuple(_add_kl_floor(distribution, floors) for distribution in distributions),
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FloorTarget:
    """What a floor has to fit: the base's model, environment and tasks, "" where unknown."""

    model: str
    environment_key: str
    environment: Mapping[str, Value]
    tasks: Mapping[str, str]

    @classmethod
    def of(
        cls,
        tables: Sequence[ScoreTable],
        description: ModelDescription | None,
        comparisons: Sequence[Comparison],
    ) -> _FloorTarget:
        keys = floor_task_keys(tables)
        environment = {} if description is None else floor_environment(description)
        return cls(
            model="" if description is None else floor_model_key(description),
            environment_key=digest_of(environment) if environment else "",
            environment=environment,
            tasks={**floor_group_keys(keys, comparisons), **keys},
        )


# Per task the floor that fits it, and what is to be said.
FloorsByTask = tuple[dict[str, MeasuredFloor], tuple[str, ...]]


def _given_floors(measured: MeasuredFloor, path: str, base: _FloorTarget) -> FloorsByTask:
    """The floor that the user gave: of another environment it is used, of another model not."""
    if base.model and measured.model and base.model != measured.model:
        return {}, (f"the floor in {path} is not used: it was measured on another model",)
    notes = []
    if not (base.model and measured.model):
        notes.append(
            f"the floor in {path} is used as given: whether it was measured on this base cannot be "
            "proven"
        )
    elif base.environment_key != measured.environment_key:
        differs = _version_difference(measured.environment, base.environment)
        notes.append(f"the floor in {path} was measured in another environment ({differs})")
    fitting, unfitting = _fitting_tasks(measured, base)
    if unfitting:
        notes.append(
            f"the floor in {path} is not used for {', '.join(unfitting)}: it was measured on other "
            "documents or prompts"
        )
    absent = [task for task in base.tasks if task not in measured.tasks]
    if absent:
        notes.append(f"the floor in {path} has no task {', '.join(absent)}")
    return fitting, tuple(notes)


def _find_stored(base: _FloorTarget, options: CompareOptions) -> FloorsByTask:
    """The floors that were kept for this base in this environment."""
    if not base.model:
        return {}, ()
    store = FloorStore((options.cache_dir or default_cache_dir()).absolute() / FLOORS_FOLDER)
    floors: dict[str, MeasuredFloor] = {}
    elsewhere: dict[str, list[str]] = {}
    for task, key in base.tasks.items():
        content = store.get(base.model, key, base.environment_key)
        if content is not None:
            measured = _read_stored_floor(content, store)
            floors |= {} if measured is None else _fitting_tasks(measured, base)[0]
            continue
        for document in store.others(base.model, key, base.environment_key):
            measured = _read_stored_floor(document, store)
            if measured is None:
                continue
            differs = _version_difference(measured.environment, base.environment)
            elsewhere.setdefault(differs, []).append(task)
    notes = [
        f"a floor of this base on {', '.join(dict.fromkeys(tasks))} was measured in another "
        f"environment ({differs}) and is not used; evalguard floor measures one here"
        for differs, tasks in elsewhere.items()
    ]
    return floors, (*store.problems, *notes)


def _read_stored_floor(content: Mapping[str, Any], store: FloorStore) -> MeasuredFloor | None:
    """Read a kept floor; one that is damaged must not cost the verdict."""
    try:
        return read_floor(content, "a kept floor")
    except UsageError as error:
        store.problems.append(f"{error}; it is not used")
        return None


def _fitting_tasks(
    measured: MeasuredFloor, base: _FloorTarget
) -> tuple[dict[str, MeasuredFloor], list[str]]:
    """The tasks that ask the same, with the floor, and the tasks that ask something else."""
    same = {task for task, key in base.tasks.items() if measured.tasks.get(task) == key}
    unfitting = [task for task in base.tasks if task in measured.tasks and task not in same]
    return dict.fromkeys(same, measured), unfitting


def _version_difference(theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> str:
    """Return "torch 2.9.0, here 2.13.0"."""
    names = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    return "; ".join(f"{name} {theirs.get(name)}, here {ours.get(name)}" for name in names)


def _add_floor(comparison: Comparison, floors: Mapping[str, MeasuredFloor]) -> Comparison:
    measured = floors.get(comparison.task)
    if measured is None or comparison.sigma is None:
        return comparison
    floor = measured.floors.get(comparison.key)
    if floor is None:
        return comparison
    known = beside(comparison.sigma, floor, measured=measured.measured)
    return replace(comparison, floor=known)


def _add_kl_floor(
    distribution: DistributionComparison, floors: Mapping[str, MeasuredFloor]
) -> DistributionComparison:
    measured = floors.get(distribution.task)
    floor = None if measured is None else measured.distributions.get(distribution.task)
    if measured is None or floor is None or distribution.kl.value is None:
        return distribution
    known = kl_beside(distribution.kl.value, floor, measured=measured.measured)
    return replace(distribution, floor=known)
