"""PlanReport: what a run would show and cost, as plain data for the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from evalguard.core.compare_report import RunIdentity
from evalguard.core.scores import NotCompared
from evalguard.core.settings import Value
from evalguard.planning.limit_plan import LimitPlan
from evalguard.planning.metric_plan import AimFacts, MetricPlan

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
        role: the side.
        pilot_documents: the documents that were scored and timed.
        pilot_seconds: that this took.
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

    @property
    def documents_per_second(self) -> float | None:
        """The pilot's pace."""
        return _per_second(self.pilot_documents, self.pilot_seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """The pilot's pace in tokens; None where they are hidden."""
        return _per_second(self.pilot_tokens, self.pilot_seconds)

    @property
    def expected_seconds(self) -> float:
        """Of the run that is planned."""
        return self.seconds.amount

    @property
    def expected_seconds_range(self) -> tuple[float, float]:
        """What the pilot leaves open of them."""
        return self.seconds.low, self.seconds.high

    @property
    def expected_tokens(self) -> float | None:
        """Of the run that is planned; None where they are hidden."""
        return None if self.tokens is None else self.tokens.amount

    @property
    def expected_tokens_range(self) -> tuple[float, float] | None:
        """What the pilot leaves open of them."""
        return None if self.tokens is None else (self.tokens.low, self.tokens.high)


def _per_second(amount: int | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0.0 else amount / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotFacts:
    """Where the plan's numbers come from.

    Attributes:
        kind: "sample" (documents drawn at random), "lm-eval runs" (all documents of two finished
            runs), "dumps" (of outputs) or "evalguard run" (what a run folder keeps).
        documents: of the sample, per task; a task with fewer has them all. None for the others.
        seed: that drew the sample.
        folder: of the evalguard run.
    """

    kind: Literal["sample", "lm-eval runs", "dumps", "evalguard run"]
    documents: int | None = None
    seed: int | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The finished plan; the one input of every report about it. Fields as its document has them.

    Attributes:
        pilot: where its numbers come from.
        aim: what it is made for.
        metrics: one per (task, filter, metric).
        limits: on figures of answers, one per limit and task that has the figure.
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
    limits: tuple[LimitPlan, ...] = ()
    costs: tuple[TaskCost, ...] = ()
    load_seconds: Mapping[Role, float] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    exit_code: int
    version: str = ""
