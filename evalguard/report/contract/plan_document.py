"""The JSON contract ``evalguard.plan/1``: one plan as one strict JSON document."""

from __future__ import annotations

from typing import Any

from evalguard.core.reports.plan_report import PlanReport, TaskCost
from evalguard.report.contract.forms import key_fields, write_record
from evalguard.report.contract.non_finite import nulls_told
from evalguard.stats.metric_plan import MetricPlan

PLAN_SCHEMA = "evalguard.plan/1"


def plan_document(report: PlanReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    fields = write_record(report)
    content = {
        "schema": PLAN_SCHEMA,
        "evalguard": fields.pop("version"),
        **fields,
        "metrics": [_metric_document(metric) for metric in report.metrics],
        "costs": [_cost_document(cost) for cost in report.costs],
        "not_compared": [
            {**key_fields((m.task, m.filter, m.metric)), "reason": m.reason}
            for m in report.not_compared
        ],
    }
    return nulls_told(content, "notes")


def _metric_document(plan: MetricPlan) -> dict[str, Any]:
    pilot = plan.pilot
    known = not pilot.problem
    return {
        "task": pilot.task,
        "filter": pilot.filter,
        "metric": pilot.metric,
        "higher_is_better": pilot.higher_is_better,
        "pilot_n": pilot.n,
        "n": plan.n,
        "margin": plan.margin,
        "margin_text": plan.given.text if plan.given else f"{plan.margin:.12g} sigma",
        "base": pilot.base,
        "base_stderr": plan.base_stderr,
        "scatter_ratio": pilot.ratio if known else None,
        "scatter_ratio_range": list(pilot.ratio_range) if known else None,
        "flip_rate": pilot.flip_rate,
        "detectable_sigma": plan.detectable_sigma,
        "detectable_sigma_range": _interval_values(plan.detectable_sigma_range),
        "detectable_change": plan.detectable_change,
        "needed_to_detect": plan.needed_to_detect,
        "needed_to_detect_range": list(plan.needed_to_detect_range),
        "needed_to_show_harmless": plan.needed_to_show_harmless,
        "needed_to_show_harmless_range": list(plan.needed_to_show_harmless_range),
        "needed_to_decide": plan.needed_to_decide,
        "needed_to_decide_range": list(plan.needed_to_decide_range),
        "method": plan.method,
        "reason": pilot.problem,
        "caveats": list(pilot.caveats),
    }


def _cost_document(cost: TaskCost) -> dict[str, Any]:
    tokens = cost.tokens
    return {
        "task": cost.task,
        "role": cost.role,
        "pilot_documents": cost.pilot_documents,
        "pilot_seconds": cost.pilot_seconds,
        "pilot_tokens": cost.pilot_tokens,
        "documents_per_second": _per_second(cost.pilot_documents, cost.pilot_seconds),
        "tokens_per_second": _per_second(cost.pilot_tokens, cost.pilot_seconds),
        "n": cost.n,
        "expected_seconds": cost.seconds.amount,
        "expected_seconds_range": [cost.seconds.low, cost.seconds.high],
        "expected_tokens": None if tokens is None else tokens.amount,
        "expected_tokens_range": None if tokens is None else [tokens.low, tokens.high],
    }


def _interval_values(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else list(ends)


def _per_second(amount: int | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0.0 else amount / seconds
