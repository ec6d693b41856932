"""Floors that were measured before, held against the drifts of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalguard.comparison import Comparison
from evalguard.errors import UsageError
from evalguard.noise_floor import MetricFloor, beside
from evalguard.pipeline.floor_keys import environment_of, group_keys, model_key, task_keys
from evalguard.pipeline.options import CompareOptions
from evalguard.report.floor_document import SCHEMA
from evalguard.scorer import ModelDescription
from evalguard.scores import ScoreTable
from evalguard.settings import Value, digest_of
from evalguard.store import FloorStore, default_cache_dir, read_result

FLOORS = "floors"
_HINT = "make one with: evalguard floor --base MODEL --json > FILE"
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFloor:
    """A floor as its document has it: what it belongs to, and its numbers."""

    model: str
    environment_key: str
    environment: Mapping[str, Value]
    tasks: Mapping[str, str]
    measured: str
    floors: Mapping[Key, MetricFloor]


def read_floor(content: Mapping[str, Any], where: str) -> MeasuredFloor:
    """Read a document of ``evalguard.floor/1``.

    Raises:
        UsageError: if it is another kind of document, or lacks what a floor has.
    """
    try:
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r} is not {SCHEMA}")
        floors = [_metric_floor(entry) for entry in content["floors"]]
        return MeasuredFloor(
            model=str(content["model"]["key"]),
            environment_key=str(content["environment_key"]),
            environment=dict(content["environment"]),
            tasks={str(task): str(key) for task, key in content["task_keys"].items()},
            measured=str(content["created"]),
            floors={floor.key: floor for floor in floors},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where} is no measured floor: {error!r}", hint=_HINT) from error


def given_floor(options: CompareOptions) -> MeasuredFloor | None:
    """Read the floor that the user gave; None without one.

    Raises:
        UsageError: if it cannot be read.
    """
    if options.floor is None:
        return None
    content = read_result(options.floor.expanduser(), schema=SCHEMA, hint=_HINT)
    return read_floor(content, str(options.floor))


def beside_floors(
    comparisons: tuple[Comparison, ...],
    tables: Sequence[ScoreTable],
    description: ModelDescription | None,
    options: CompareOptions,
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Hold every drift against the floor of the base, where one is known.

    Args:
        tables: the base's scores.
        description: the base as loaded; None for a finished run, which has no floor of its own.

    Returns:
        The comparisons with their floors, and what is to be said about floors that do not fit.

    Raises:
        UsageError: if ``options.floor`` cannot be read.
    """
    base = _Base.of(tables, description, comparisons)
    given = given_floor(options)
    floors, notes = (
        _kept(base, options) if given is None else _given(given, str(options.floor), base)
    )
    return tuple(_beside(comparison, floors) for comparison in comparisons), notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
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
    ) -> _Base:
        keys = task_keys(tables)
        environment = {} if description is None else environment_of(description)
        return cls(
            model="" if description is None else model_key(description),
            environment_key=digest_of(environment) if environment else "",
            environment=environment,
            tasks={**group_keys(keys, comparisons), **keys},
        )


Found = tuple[dict[Key, tuple[MetricFloor, str]], tuple[str, ...]]


def _given(measured: MeasuredFloor, path: str, base: _Base) -> Found:
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
        differs = _difference(measured.environment, base.environment)
        notes.append(f"the floor in {path} was measured in another environment ({differs})")
    found, others = _fitting(measured, base)
    if others:
        notes.append(
            f"the floor in {path} is not used for {', '.join(others)}: it was measured on other "
            "documents or prompts"
        )
    absent = [task for task in base.tasks if task not in measured.tasks]
    if absent:
        notes.append(f"the floor in {path} has no task {', '.join(absent)}")
    return found, tuple(notes)


def _kept(base: _Base, options: CompareOptions) -> Found:
    """The floors that were kept for this base in this environment."""
    if not base.model:
        return {}, ()
    store = FloorStore((options.cache_dir or default_cache_dir()).absolute() / FLOORS)
    found: dict[Key, tuple[MetricFloor, str]] = {}
    elsewhere: dict[str, list[str]] = {}
    for task, key in base.tasks.items():
        content = store.get(base.model, key, base.environment_key)
        if content is not None:
            measured = _readable(content, store)
            found |= {} if measured is None else _fitting(measured, base)[0]
            continue
        for other in store.others(base.model, key, base.environment_key):
            measured = _readable(other, store)
            if measured is None:
                continue
            differs = _difference(measured.environment, base.environment)
            elsewhere.setdefault(differs, []).append(task)
    notes = [
        f"a floor of this base on {', '.join(dict.fromkeys(tasks))} was measured in another "
        f"environment ({differs}) and is not used; evalguard floor measures one here"
        for differs, tasks in elsewhere.items()
    ]
    return found, (*store.problems, *notes)


def _readable(content: Mapping[str, Any], store: FloorStore) -> MeasuredFloor | None:
    """Read a kept floor; one that is damaged must not cost the verdict."""
    try:
        return read_floor(content, "a kept floor")
    except UsageError as error:
        store.problems.append(f"{error}; it is not used")
        return None


def _fitting(
    measured: MeasuredFloor, base: _Base
) -> tuple[dict[Key, tuple[MetricFloor, str]], list[str]]:
    """The floors of tasks that ask the same, and the tasks that ask something else."""
    same = {task for task, key in base.tasks.items() if measured.tasks.get(task) == key}
    found = {
        key: (floor, measured.measured)
        for key, floor in measured.floors.items()
        if floor.task in same
    }
    return found, [task for task in base.tasks if task in measured.tasks and task not in same]


def _difference(theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> str:
    """Return "torch 2.9.0, here 2.13.0"."""
    names = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    return "; ".join(f"{name} {theirs.get(name)}, here {ours.get(name)}" for name in names)


def _beside(comparison: Comparison, floors: Mapping[Key, tuple[MetricFloor, str]]) -> Comparison:
    found = floors.get((comparison.task, comparison.filter, comparison.metric))
    if found is None or comparison.sigma is None:
        return comparison
    floor, measured = found
    return replace(comparison, floor=beside(comparison.sigma, floor, measured=measured))


def _metric_floor(entry: Mapping[str, Any]) -> MetricFloor:
    spread = entry["document_sd"]
    return MetricFloor(
        task=str(entry["task"]),
        filter=str(entry["filter"]),
        metric=str(entry["metric"]),
        n=int(entry["n"]),
        sigma=_size(entry["sigma"]),
        sigma_upper=_size(entry["sigma_upper"]),
        document_sd=None if spread is None else _size(spread),
        variation=str(entry["variation"]),
        bit_identical=bool(entry["bit_identical"]),
    )


def _size(value: Any) -> float:
    """A size of drift; null stands for an infinite one, which JSON cannot hold."""
    number = math.inf if value is None else float(value)
    if not number >= 0.0:
        raise ValueError(f"{value!r} is no size of a drift")
    return number
