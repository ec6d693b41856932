"""A measured floor, read back from its document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalguard.distribution_floor import TaskDistributionFloor
from evalguard.errors import UsageError
from evalguard.noise_floor import MetricFloor
from evalguard.pipeline.options import CompareOptions
from evalguard.report.floor_document import SCHEMA
from evalguard.settings import Value
from evalguard.store import read_result

_HINT = "make one with: evalguard floor --base MODEL --json > FILE"
Key = tuple[str, str, str]


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
    floors: Mapping[Key, MetricFloor]
    distributions: Mapping[str, TaskDistributionFloor] = field(default_factory=dict)


def read_floor(content: Mapping[str, Any], where: str) -> MeasuredFloor:
    """Read a document of ``evalguard.floor/1``.

    Raises:
        UsageError: if it is another kind of document, or lacks what a floor has.
    """
    try:
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r} is not {SCHEMA}")
        floors = [_metric_floor(entry) for entry in content["floors"]]
        distributions = [_kl_floor(entry) for entry in content.get("distribution_floors", ())]
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


def _metric_floor(entry: Mapping[str, Any]) -> MetricFloor:
    spread = entry["document_sd"]
    return MetricFloor(
        task=str(entry["task"]),
        filter=str(entry["filter"]),
        metric=str(entry["metric"]),
        n=_count(entry["n"]),
        sigma=_size(entry["sigma"]),
        sigma_upper=_size(entry["sigma_upper"]),
        document_sd=None if spread is None else _size(spread),
        variation=str(entry["variation"]),
        bit_identical=_flag(entry["bit_identical"]),
    )


def _size(value: Any) -> float:
    """A size of drift; null stands for an infinite one, which JSON cannot hold."""
    number = _number(value)
    if number < 0.0:
        raise ValueError(f"{value!r} is no size of a drift")
    return number


def _kl_floor(entry: Mapping[str, Any]) -> TaskDistributionFloor:
    return TaskDistributionFloor(
        task=str(entry["task"]),
        n=_count(entry["n"]),
        positions=_count(entry["positions"]),
        kl=_number(entry["kl"]),
        kl_upper=_number(entry["kl_upper"]),
        kl_max=_number(entry["kl_max"]),
        top1_changed=_size(entry["top1_changed"]),
        variation=str(entry["variation"]),
        bit_identical=_flag(entry["bit_identical"]),
    )


def _number(value: Any) -> float:
    """A number, a KL say, which may be estimated below 0; null stands for an infinite one."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of documents or tokens")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
