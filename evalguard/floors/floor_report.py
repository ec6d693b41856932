"""FloorReport: what an unchanged model shows, and its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evalguard.core.compare_report import RunIdentity
from evalguard.core.noise_floor import (
    DistributionShift,
    MetricFloor,
    Shift,
    TaskDistributionFloor,
    Unmeasured,
    Variation,
)
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value
from evalguard.errors import EXIT_FAILED, EXIT_PASSED
from evalguard.report.record_documents import nulls_told, write_record
from evalguard.report.record_schema import LOST, TEXT, add_keys, contract_schema, describe_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorReport:
    """A measured A/A floor; the one input of every report about it, and what is kept of it.

    Attributes:
        model: which model, in its default run.
        model_key: digest of what makes its scores but how it computes (weights, tokenizer, dtype,
            settings); "" where the model cannot prove its weights.
        environment_key: digest of ``environment``, on which rounding depends.
        environment: device, dtype, torch's switches, torch, transformers.
        task_keys: task -> digest of what it asks (first document, prompt and target).
        computation: how the default run computed, as read back.
        variations: those that were applied and read back; ``unmeasured`` the others, and why.
        shifts: one per variation, task, filter and metric; ``floors`` one per metric.
        distribution_shifts: one per variation and task whose next-token distributions were
            compared; ``distribution_floors`` one per task.
        seed: of few-shot examples and sampling.
        confidence: of all intervals.
        margin: of the gate that a comparison would have, in sigma.
        exit_code: 0, or 3 where a metric has no floor.
        surroundings: versions and platform, for the record.
        kept: files it was stored in.
        unmeasured: what could not be had, and why.
        floors: the most that any variation shows, per metric.
        distribution_floors: the most that any variation shows, per task.
    """

    model: RunIdentity
    model_key: str
    environment_key: str
    environment: Mapping[str, Value]
    task_keys: Mapping[str, str]
    computation: Mapping[str, Value]
    variations: tuple[Variation, ...]
    unmeasured: tuple[Unmeasured, ...]
    shifts: tuple[Shift, ...]
    floors: tuple[MetricFloor, ...]
    distribution_shifts: tuple[DistributionShift, ...] = ()
    distribution_floors: tuple[TaskDistributionFloor, ...] = ()
    seed: int
    confidence: float
    margin: float
    exit_code: int
    created: str
    not_compared: tuple[NotCompared, ...] = ()
    notes: tuple[str, ...] = ()
    surroundings: Mapping[str, Value] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    command: str = ""
    version: str = ""

    def only(self, task: str) -> FloorReport:
        """This report without the other tasks."""
        return replace(
            self,
            task_keys={task: self.task_keys[task]},
            unmeasured=tuple(u for u in self.unmeasured if u.task in ("", task)),
            shifts=tuple(shift for shift in self.shifts if shift.task == task),
            floors=tuple(floor for floor in self.floors if floor.task == task),
            distribution_shifts=tuple(d for d in self.distribution_shifts if d.task == task),
            distribution_floors=tuple(d for d in self.distribution_floors if d.task == task),
            not_compared=tuple(
                comparison for comparison in self.not_compared if comparison.task == task
            ),
        )


FLOOR_SCHEMA = "evalguard.floor/1"
FLOOR_METHOD = (
    "each variation paired with the default run on the same documents; the floor is the largest "
    "size of sigma over the variations"
)


def floor_document(report: FloorReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    content = {"schema": FLOOR_SCHEMA, "method": FLOOR_METHOD, **write_record(report)}
    content["model"]["key"] = report.model_key
    return nulls_told(content, "notes")


def floor_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        FLOOR_SCHEMA,
        FloorReport,
        "A measured A/A floor: what an unchanged model shows",
        exit_code={"enum": [EXIT_PASSED, EXIT_FAILED]},
        method={**TEXT, "description": "How floors come about."},
        non_finite=LOST,
    )
    key = {**TEXT, "description": describe_fields(FloorReport)["model_key"]}
    add_keys(schema, RunIdentity, key=key)
    return schema
