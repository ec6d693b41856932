"""Floors that were measured before, held against the drifts of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.distribution_floor import kl_beside
from evalguard.core.noise_floor import beside
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of
from evalguard.errors import UsageError
from evalguard.run.floor.floor_keys import (
    floor_environment,
    floor_group_keys,
    floor_model_key,
    floor_task_keys,
)
from evalguard.run.floor.stored_floors import MeasuredFloor, read_floor, read_given_floor
from evalguard.run.options import CompareOptions
from evalguard.store.cache_folder import default_cache_dir
from evalguard.store.floor_store import FloorStore

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
