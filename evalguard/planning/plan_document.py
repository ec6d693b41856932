"""The JSON contract ``evalguard.plan/1``: one plan as one strict JSON document."""

from __future__ import annotations

from typing import Any

from evalguard.errors import EXIT_FAILED, EXIT_PASSED
from evalguard.planning.plan_report import PlanReport
from evalguard.report.record_documents import nulls_told, write_record
from evalguard.report.record_schema import LOST, contract_schema

PLAN_SCHEMA = "evalguard.plan/1"


def plan_document(report: PlanReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    return nulls_told({"schema": PLAN_SCHEMA, **write_record(report)}, "notes")


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    return contract_schema(
        PLAN_SCHEMA,
        PlanReport,
        "A plan: what a comparison would show and cost",
        load_seconds={
            "type": "object",  # of the sides that are models
            "additionalProperties": {"type": "number", "minimum": 0},
        },
        exit_code={"enum": [EXIT_PASSED, EXIT_FAILED]},
        non_finite=LOST,
    )
