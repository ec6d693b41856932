"""The JSON contracts ``evalguard.tensors/1`` and ``evalguard.noise/1``."""

from __future__ import annotations

import json
from typing import Any

from evalguard.core.reports.tensors_report import TensorDelta, TensorsReport
from evalguard.core.tensors.noise import NoiseTable
from evalguard.errors import StoreError
from evalguard.report.contract.json_values import (
    in_schema_order,
    nulls_told,
    read_record,
    read_schema,
    record_fields,
)

TENSORS_SCHEMA = "evalguard.tensors/1"
NOISE_SCHEMA = "evalguard.noise/1"


def tensors_document(report: TensorsReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    fields = record_fields(report)
    del fields["deltas"]
    content = {
        "schema": TENSORS_SCHEMA,
        "evalguard": fields.pop("version"),
        **fields,
        "passed": report.passed,
        "missing": list(report.missing),
        "states": {
            state: report.count(state)
            for state in ("identical", "equal", "within", "beyond", "shape", "unreadable")
        },
        "tensors": [_tensor_fields(delta) for delta in report.deltas],
        "invariants": [
            {
                **record_fields(one),
                "holds": one.holds,
                "elements": one.elements,
                "violations": one.violations,
                "share": one.share,
            }
            for one in report.invariants
        ],
        "exit_code": report.exit_code,
    }
    return nulls_told(in_schema_order(content, read_schema("tensors")), "caveats")


def _tensor_fields(delta: TensorDelta) -> dict[str, Any]:
    fields = record_fields(delta)
    for side in ("base", "candidate"):
        zeros = fields[side]["zeros"]
        fields[side]["zero_share"] = zeros / delta.elements if delta.elements else 0.0
    return {**fields, "mismatched_share": delta.mismatched_share, "passed": delta.passed}


def noise_document(table: NoiseTable) -> dict[str, Any]:
    """Return a noise table as plain JSON values."""
    content = {"schema": NOISE_SCHEMA, **record_fields(table), "notes": []}
    return nulls_told(in_schema_order(content, read_schema("noise")), "notes")


def parse_noise(text: str, where: str) -> NoiseTable:
    """Read a noise table that ``--calibrate`` wrote.

    Raises:
        StoreError: the text is none.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is not JSON", hint=_NOISE_HINT) from error
    if not isinstance(content, dict) or content.get("schema") != NOISE_SCHEMA:
        raise StoreError(f"{where} is no {NOISE_SCHEMA}", hint=_NOISE_HINT)
    kept = {name: value for name, value in content.items() if name not in ("schema", "notes")}
    table: NoiseTable = read_record(NoiseTable, kept, where)
    return table


_NOISE_HINT = "write one with evalguard tensors --calibrate WHAT --json > noise.json"
