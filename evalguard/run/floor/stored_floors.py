"""A measured floor, read back from its document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.distribution_floor import TaskDistributionFloor, kl_beside
from evalguard.core.noise_floor import MetricFloor, beside
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of
from evalguard.errors import UsageError
from evalguard.report.floor import FLOOR_SCHEMA
from evalguard.run.options import CompareOptions
from evalguard.store.block_cache import default_cache_dir
from evalguard.store.files import FloorStore
from evalguard.store.run_tables import read_result

_FLOOR_HINT = "make one with: evalguard floor --base MODEL --json > FILE"
FloorKey = tuple[str, str, str]


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
        floors = [_read_metric_floor(entry) for entry in content["floors"]]
        distributions = [_read_kl_floor(entry) for entry in content.get("distribution_floors", ())]
        return MeasuredFloor(
            model=str(content["model"]["key"]),
            environment_key=str(content["environment_key"]),
            environment=dict(content["environment"]),
            tasks={str(task): str(key) for task, key in content["task_keys"].items()},
            measured=str(content["created"]),
            floors={floor.key: floor for floor in floors},
            distributions={floor.task: floor for floor in distributions},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{where} is not a measured floor: {error!r}", hint=_FLOOR_HINT) from error


def read_given_floor(options: CompareOptions) -> MeasuredFloor | None:
    """Read the floor that the user gave; None without one.

    Raises:
        UsageError: if it cannot be read.
    """
    if options.floor is None:
        return None
    content = read_result(options.floor.expanduser(), schema=FLOOR_SCHEMA, hint=_FLOOR_HINT)
    return read_floor(content, str(options.floor))


def _read_metric_floor(entry: Mapping[str, Any]) -> MetricFloor:
    spread = entry["document_sd"]
    return MetricFloor(
        task=str(entry["task"]),
        filter=str(entry["filter"]),
        metric=str(entry["metric"]),
        n=_read_count(entry["n"]),
        sigma=_drift_size(entry["sigma"]),
        sigma_upper=_drift_size(entry["sigma_upper"]),
        document_sd=None if spread is None else _drift_size(spread),
        variation=str(entry["variation"]),
        bit_identical=_read_flag(entry["bit_identical"]),
    )


def _drift_size(value: Any) -> float:
    """A size of drift; null stands for an infinite one, which JSON cannot hold."""
    number = _read_number(value)
    if number < 0.0:
        raise ValueError(f"{value!r} is not a size of a drift")
    return number


def _read_kl_floor(entry: Mapping[str, Any]) -> TaskDistributionFloor:
    return TaskDistributionFloor(
        task=str(entry["task"]),
        n=_read_count(entry["n"]),
        positions=_read_count(entry["positions"]),
        kl=_read_number(entry["kl"]),
        kl_upper=_read_number(entry["kl_upper"]),
        kl_max=_read_number(entry["kl_max"]),
        top1_changed=_drift_size(entry["top1_changed"]),
        variation=str(entry["variation"]),
        bit_identical=_read_flag(entry["bit_identical"]),
    )


def _read_number(value: Any) -> float:
    """A number, a KL say, which may be estimated below 0; null stands for an infinite one."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _read_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of documents or tokens")
    return value


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


# Floors that were measured before, held against the drifts of a comparison.


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
    found, others = _fitting_tasks(measured, base)
    if others:
        notes.append(
            f"the floor in {path} is not used for {', '.join(others)}: it was measured on other "
            "documents or prompts"
        )
    absent = [task for task in base.tasks if task not in measured.tasks]
    if absent:
        notes.append(f"the floor in {path} has no task {', '.join(absent)}")
    return found, tuple(notes)


def _find_stored(base: _FloorTarget, options: CompareOptions) -> FloorsByTask:
    """The floors that were kept for this base in this environment."""
    if not base.model:
        return {}, ()
    store = FloorStore((options.cache_dir or default_cache_dir()).absolute() / FLOORS_FOLDER)
    found: dict[str, MeasuredFloor] = {}
    elsewhere: dict[str, list[str]] = {}
    for task, key in base.tasks.items():
        content = store.get(base.model, key, base.environment_key)
        if content is not None:
            measured = _read_stored_floor(content, store)
            found |= {} if measured is None else _fitting_tasks(measured, base)[0]
            continue
        for other in store.others(base.model, key, base.environment_key):
            measured = _read_stored_floor(other, store)
            if measured is None:
                continue
            differs = _version_difference(measured.environment, base.environment)
            elsewhere.setdefault(differs, []).append(task)
    notes = [
        f"a floor of this base on {', '.join(dict.fromkeys(tasks))} was measured in another "
        f"environment ({differs}) and is not used; evalguard floor measures one here"
        for differs, tasks in elsewhere.items()
    ]
    return found, (*store.problems, *notes)


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
    others = [task for task in base.tasks if task in measured.tasks and task not in same]
    return dict.fromkeys(same, measured), others


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
    found = beside(comparison.sigma, floor, measured=measured.measured)
    return replace(comparison, floor=found)


def _add_kl_floor(
    distribution: DistributionComparison, floors: Mapping[str, MeasuredFloor]
) -> DistributionComparison:
    measured = floors.get(distribution.task)
    floor = None if measured is None else measured.distributions.get(distribution.task)
    if measured is None or floor is None or distribution.kl.value is None:
        return distribution
    found = kl_beside(distribution.kl.value, floor, measured=measured.measured)
    return replace(distribution, floor=found)


# Which floor belongs to which model, task and environment.


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
    kept = arguments if isinstance(arguments, Mapping) else {}
    return digest_of(
        {
            **{name: identity.get(name) for name in _MODEL_KEYS},
            "model_args": {k: v for k, v in kept.items() if k not in _VARIED_KEYS},
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
