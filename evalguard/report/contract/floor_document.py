"""The JSON contract ``evalguard.floor/1``: one measured A/A floor as one strict JSON document."""

from __future__ import annotations

from typing import Any

from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.reports.floor_report import FloorReport
from evalguard.errors import EXIT_FAILED, EXIT_PASSED
from evalguard.report.contract.field_descriptions import describe_fields
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import nulls_told
from evalguard.report.contract.record_schema import LOST, TEXT, add_keys, contract_schema

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
