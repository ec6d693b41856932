"""TraceReport: where a candidate's error is introduced, and its JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.core.checksum import with_checksum
from evalguard.core.compare_report import RunIdentity
from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.settings import Value
from evalguard.core.trace_record import ConstantRelation, Trace
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, StoreError
from evalguard.report.record_documents import (
    NON_FINITE,
    damaged_error,
    non_finite_of_texts,
    nulls_told,
    read_list,
    read_non_finite,
    read_record,
    restore_non_finite,
    write_record,
)
from evalguard.report.record_schema import CHECKSUM, LOST, add_keys, contract_schema
from evalguard.store.run_folder import read_document


def read_trace_file(file: Path) -> TraceReport:
    """Read the trace that a file holds.

    Raises:
        StoreError: it is damaged.
    """
    document = read_document(file, schemas=(TRACE_SCHEMA,), hint="trace again, or remove the file")
    try:
        return read_trace(document)
    except StoreError as error:
        raise StoreError(f"{file}: {error}", hint=error.hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedTwin:
    """The candidate beside itself with a padded text, where padding changes it and not the base.

    Attributes:
        nats, base_nats: largest change of a likely token's log-probability on each side; None for
            a base of which that is not known.
        module: the first one whose output padding changes while its input stays; "" where none was
            found, or the candidate is not at hand. ``error``: relative L2 there.
    """

    nats: float
    base_nats: float | None
    module: str = ""
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDocument:
    """One sequence that both models read.

    Attributes:
        name: "lastword 17", or the file that it comes from.
        tokens: positions; samples of an encoder that reads a signal.
        task, doc_id, request: of an lm-eval task; "" and None for the user's own.
        drift: what it adds to sigma in the comparison that it was chosen from.
        token_texts: what each position says, where a tokenizer is at hand.
    """

    name: str
    tokens: int
    task: str = ""
    doc_id: int | None = None
    request: int | None = None
    drift: float | None = None
    token_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """The finished trace; the one input of every report about it.

    Attributes:
        documents: in the order in which ``trace`` counts its sequences; ``chosen`` says why these.
        run: folder of the comparison that they were chosen from; None: of none.
        padded: what padding changes in the candidate alone; None: nothing, or that is not known.
        swap_task: task and metric on which ``swap_sigma`` of the suspects was measured; "" if not.
        folder: where this was written; None: nowhere.
        exit_code: 0 nothing beyond the floor, 1 a location is named, 3 nothing known.
        chosen: why these documents.
    """

    created: str
    command: str = ""
    base: RunIdentity
    candidate: RunIdentity
    trace: Trace
    hyperparameters: tuple[HyperparameterDelta, ...] = ()
    documents: tuple[TracedDocument, ...] = ()
    chosen: str = ""
    run: str | None = None
    padded: PaddedTwin | None = None
    swap_task: str = ""
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    folder: str | None = None
    exit_code: int
    version: str = ""


TRACE_SCHEMA = "evalguard.trace/1"


def trace_document(report: TraceReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null, and told."""
    content = {"schema": TRACE_SCHEMA, **write_record(report)}
    content["caveats"] += report.notes
    if not report.trace.details:
        content["documents"] = [
            {**document_entry, "token_texts": []} for document_entry in content["documents"]
        ]
    return with_checksum(nulls_told(content, "caveats"))


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
        caveats = [str(caveat) for caveat in read_list(document.get("caveats"), "caveats")]
        known = NON_FINITE in document
        lost = read_non_finite(document[NON_FINITE]) if known else non_finite_of_texts(caveats)
        fields = restore_non_finite({**document, "caveats": caveats}, "caveats", lost)
        documents = len(read_list(fields.get("documents"), "documents"))
        trace = {**fields, "documents": documents}
        report: TraceReport = read_record(TraceReport, {**fields, "trace": trace})
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error
    return report
