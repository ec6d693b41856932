"""The JSON contract ``evalguard.tensors/1``."""

from __future__ import annotations

from typing import Any

from evalguard.core.reports.tensors_report import InvariantResult, SideCounts, TensorsReport
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import nulls_told
from evalguard.report.contract.record_schema import LOST, add_keys, contract_schema

TENSORS_SCHEMA = "evalguard.tensors/1"


def tensors_document(report: TensorsReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    content = {"schema": TENSORS_SCHEMA, **write_record(report)}
    for delta, fields in zip(report.deltas, content["tensors"], strict=True):
        for side in ("base", "candidate"):
            zeros = fields[side]["zeros"]
            fields[side]["zero_share"] = zeros / delta.elements if delta.elements else 0.0
    return nulls_told(content, "caveats")


def tensors_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        TENSORS_SCHEMA,
        TensorsReport,
        "Two sets of stored tensors compared",
        exit_code={"enum": [EXIT_PASSED, EXIT_REGRESSED, EXIT_FAILED]},
        non_finite=LOST,
    )
    share = {"type": "number", "description": "Zeros as a share of the elements compared."}
    add_keys(schema, SideCounts, zero_share=share)
    add_keys(schema, InvariantResult, share={"type": "number"})
    return schema
