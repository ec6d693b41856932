"""The JSON contracts ``evalguard.tensors/1`` and ``evalguard.noise/1``."""

from __future__ import annotations

import json
from typing import Any

from evalguard.core.reports.tensors_report import InvariantResult, SideCounts, TensorsReport
from evalguard.core.tensors.noise import NoiseTable
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, StoreError
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import nulls_told
from evalguard.report.contract.record_reading import read_record
from evalguard.report.contract.record_schema import LOST, TEXTS, add_keys, contract_schema

TENSORS_SCHEMA = "evalguard.tensors/1"
NOISE_SCHEMA = "evalguard.noise/1"


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


def noise_document(table: NoiseTable) -> dict[str, Any]:
    """Return a noise table as plain JSON values."""
    return nulls_told({"schema": NOISE_SCHEMA, **write_record(table), "notes": []}, "notes")


def noise_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every noise table satisfies."""
    title = "Noise of one computation, as evalguard tensors --calibrate measured it"
    notes = {**TEXTS, "description": "Numbers that are null here."}
    return contract_schema(NOISE_SCHEMA, NoiseTable, title, notes=notes, non_finite=LOST)


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
