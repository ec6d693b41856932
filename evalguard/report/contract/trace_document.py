"""The JSON contract ``evalguard.trace/1``: one trace as one strict JSON document, and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evalguard.core.checksum import with_checksum
from evalguard.core.reports.trace_report import ConstantRelation, TraceReport
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, StoreError
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import (
    NON_FINITE,
    non_finite_of_texts,
    nulls_told,
    read_non_finite,
    restore_non_finite,
)
from evalguard.report.contract.record_reading import damaged_error, read_list, read_record
from evalguard.report.contract.record_schema import CHECKSUM, LOST, add_keys, contract_schema

TRACE_SCHEMA = "evalguard.trace/1"


def trace_document(report: TraceReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null, and told."""
    content = {"schema": TRACE_SCHEMA, **write_record(report)}
    content["caveats"] += report.notes
    if not report.trace.details:
        content["documents"] = [{**one, "token_texts": []} for one in content["documents"]]
    return with_checksum(nulls_told(content, "caveats"))


def render_trace_json(report: TraceReport) -> str:
    """Return the document as text."""
    return json.dumps(trace_document(report), indent=2, allow_nan=False)


def trace_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        TRACE_SCHEMA,
        TraceReport,
        "A trace: the module at which a candidate's error is introduced",
        exit_code={"enum": [EXIT_PASSED, EXIT_REGRESSED, EXIT_FAILED]},
        non_finite=LOST,
        checksum=CHECKSUM,
    )
    add_keys(schema, ConstantRelation, value={"type": "number"})
    return schema


def read_trace(document: Mapping[str, Any]) -> TraceReport:
    """Return the report that a stored document was made of.

    Raises:
        StoreError: it follows another contract, or is damaged; the message names the key.
    """
    if document.get("schema") != TRACE_SCHEMA:
        raise StoreError(
            f"the stored trace follows {document.get('schema')!r}, and this evalguard reads "
            f"{TRACE_SCHEMA}",
            hint="use the evalguard that wrote it, or trace again",
        )
    try:
        caveats = [str(one) for one in read_list(document.get("caveats"), "caveats")]
        known = NON_FINITE in document
        lost = read_non_finite(document[NON_FINITE]) if known else non_finite_of_texts(caveats)
        fields = restore_non_finite({**document, "caveats": caveats}, "caveats", lost)
        documents = len(read_list(fields.get("documents"), "documents"))
        trace = {**fields, "documents": documents}
        report: TraceReport = read_record(TraceReport, {**fields, "trace": trace})
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error
    return report
