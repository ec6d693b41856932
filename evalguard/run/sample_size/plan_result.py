"""What ``evalguard.plan`` returns."""

from __future__ import annotations

import json
from dataclasses import dataclass

from evalguard.core.reports.plan_report import PlanReport, TaskCost
from evalguard.core.settings import Value
from evalguard.report.contract.plan_document import plan_document
from evalguard.report.plan_terminal import render_plan
from evalguard.stats.metric_plan import MetricPlan


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A finished plan. ``report`` holds everything; the properties are shortcuts to it."""

    report: PlanReport

    @property
    def metrics(self) -> tuple[MetricPlan, ...]:
        """One plan per (task, filter, metric)."""
        return self.report.metrics

    @property
    def costs(self) -> tuple[TaskCost, ...]:
        """Expected time and tokens, per task and model."""
        return self.report.costs

    @property
    def exit_code(self) -> int:
        """What the command line ends with: 0, or 3 where a metric gave no scores."""
        return self.report.exit_code

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.plan/1``) as plain data."""
        return plan_document(self.report)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the JSON contract as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the plan."""
        return render_plan(self.report, width=width, color=color, verbose=verbose)
