"""PlanReport: what a run would show and cost, as plain data for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from evalguard.core.distribution_floor import DistributionShift, TaskDistributionFloor
from evalguard.core.noise_floor import MetricFloor, Shift, Unmeasured, Variation
from evalguard.core.reports.compare import RunIdentity
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value
from evalguard.stats.pilot import MetricPlan

Role = Literal["base", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDrift:
    """An amount of the whole run, and the interval that the pilot's documents leave open."""

    amount: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """What one model needs for one task, loading apart.

    Attributes:
        pilot_documents: the documents that were scored and timed, in ``pilot_seconds``.
        pilot_tokens: tokens that they fed to the model; None where the model type hides them.
        n: documents of the run that is planned.
        seconds, tokens: of that run. Time is taken to grow as the tokens do.
    """

    task: str
    role: Role
    pilot_documents: int
    pilot_seconds: float
    pilot_tokens: int | None
    n: int
    seconds: ExpectedDrift
    tokens: ExpectedDrift | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFacts:
    """Where the plan's numbers come from.

    Attributes:
        kind: "sample" (documents drawn at random), "lm-eval runs" (all documents of two finished
            runs) or "evalguard run" (what a run folder keeps).
        documents: of the sample, per task; a task with fewer has them all. None for the others.
        seed: that drew the sample. folder: of the evalguard run.
    """

    kind: Literal["sample", "lm-eval runs", "evalguard run"]
    documents: int | None = None
    seed: int | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AimFacts:
    """What a plan is made for.

    Attributes:
        margin: the drift that matters, in standard errors of the base (sigma); where it was given
            in another unit, the smallest that it comes to over the metrics.
        alpha: one-sided level of the test, (1 - confidence) / 2.
        power: chance to see a drift that is there.
        confidence: of all intervals.
    """

    margin: float
    alpha: float
    power: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The finished plan; the one input of every report about it. Fields as its document has them.

    Attributes:
        metrics: one per (task, filter, metric).
        costs: one per task and model that would be scored; empty where nothing was timed.
        load_seconds: what loading each model took.
        exit_code: 0, or 3 where a metric gave no scores.
    """

    created: str
    command: str = ""
    base: RunIdentity
    candidate: RunIdentity
    pilot: PilotFacts
    aim: AimFacts
    metrics: tuple[MetricPlan, ...]
    costs: tuple[TaskCost, ...] = ()
    load_seconds: Mapping[Role, float] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    exit_code: int
    version: str = ""


# FloorReport: what an unchanged model shows, as plain data for the reports.


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
        seed: of few-shot examples and sampling. confidence: of all intervals. margin: of the gate
            that a comparison would have, in sigma.
        exit_code: 0, or 3 where a metric has no floor.
        surroundings: versions and platform, for the record.
        kept: files it was stored in.
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
            not_compared=tuple(left for left in self.not_compared if left.task == task),
        )
