"""Floors that were measured before, as they are read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalguard.core.distribution_floor import TaskDistributionFloor
from evalguard.core.noise_floor import MetricFloor
from evalguard.core.settings import Value
from evalguard.errors import UsageError
from evalguard.report.floor import FLOOR_SCHEMA
from evalguard.run.options import CompareOptions
from evalguard.store.result_file import read_result

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
