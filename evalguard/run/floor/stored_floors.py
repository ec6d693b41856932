"""Floors that were measured before, as they are read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from evalguard.core.distribution_floor import TaskDistributionFloor
from evalguard.core.noise_floor import MetricFloor
from evalguard.core.settings import Value
from evalguard.errors import StoreError, UsageError
from evalguard.report.contract.floor_document import FLOOR_SCHEMA
from evalguard.report.contract.record_reading import read_record
from evalguard.run.options import CompareOptions
from evalguard.store.result_file import read_result

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
