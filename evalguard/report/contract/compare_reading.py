"""A document of ``evalguard.compare/1``, read back into the report that it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.report_faults import report_faults
from evalguard.errors import StoreError
from evalguard.report.contract.compare_document import (
    COMPARE_SCHEMA,
    EXPECTED,
    FAMILY,
    WITH_CAVEATS,
)
from evalguard.report.contract.compare_parts import (
    bisect_fields,
    gate_fields,
    quote_old_words,
    read_gated,
    restore_states,
    side_fields,
)
from evalguard.report.contract.non_finite import (
    NON_FINITE,
    non_finite_of_texts,
    read_non_finite,
    restore_non_finite,
)
from evalguard.report.contract.record_reading import (
    damaged_error,
    read_entries,
    read_list,
    read_record,
)


def read_report(document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a stored document was made of.

    Numbers that JSON cannot hold come back as what ``non_finite`` says that they were. Keys that
    an earlier version did not write have their defaults; keys of a later one are ignored. What
    contradicts itself was changed by hand or is broken: it is refused, not shown.

    Raises:
        StoreError: it follows another contract, or is damaged; the message names the key.
    """
    report = parse_report(document)
    for where, what in report_faults(report):
        raise damaged_error(where, what)
    return report


def parse_report(document: Mapping[str, Any]) -> CompareReport:
    """Return what a document says, whether or not it contradicts itself.

    Raises:
        StoreError: as ``read_report``, for keys that are missing or hold something else.
    """
    found = document.get("schema") if isinstance(document, Mapping) else None
    if found != COMPARE_SCHEMA:
        raise StoreError(
            f"the stored result follows {found!r}, and this evalguard reads {COMPARE_SCHEMA}",
            hint="use the evalguard that wrote it, or compare again",
        )
    try:
        return _read_document(document)
    except RecursionError as error:
        raise damaged_error("the document", "is nested too deeply") from error


def _read_document(document: Mapping[str, Any]) -> CompareReport:
    if "comparisons" not in document:
        raise damaged_error("comparisons", "is missing")
    fields = quote_old_words(_restore(document))
    gated = read_gated(fields.get("gate"))
    report: CompareReport = read_record(
        CompareReport,
        {
            **fields,
            "base": side_fields(fields.get("base"), "base"),
            "candidate": side_fields(fields.get("candidate"), "candidate"),
            "gate": gate_fields(fields["gate"], gated),
            "bisect": bisect_fields(fields.get("bisect")),
        },
    )
    if report.bisect and all(search.inside for search in report.bisect.searches):
        raise damaged_error("bisect.searches", "has none of whole settings")
    return replace(report, gate=restore_states(report, gated))


def _restore(document: Mapping[str, Any]) -> dict[str, Any]:
    """Put back the numbers that JSON cannot hold, in the document and in its parts with caveats."""
    parts: dict[str, list[dict[str, Any]]] = {
        key: [
            _with_texts(read_entries(one, f"{key}[{number}]"), "caveats", f"{key}[{number}].")
            for number, one in enumerate(read_list(document.get(key, []), key))
        ]
        for key in WITH_CAVEATS
    }
    own = {key: value for key, value in document.items() if key not in WITH_CAVEATS}
    own = _with_texts(own, "notes", "")
    if NON_FINITE in document:
        lost = read_non_finite(document[NON_FINITE])
    else:
        lost = non_finite_of_texts(own["notes"])
        for key, some in parts.items():
            for number, one in enumerate(some):
                lost |= non_finite_of_texts(one["caveats"], f"{key}[{number}].")
    fields = restore_non_finite(own, "notes", lost, absent=[FAMILY])
    for key, some in parts.items():
        fields[key] = [
            restore_non_finite(one, "caveats", lost, f"{key}[{number}].", absent=EXPECTED)
            for number, one in enumerate(some)
        ]
    return fields


def _with_texts(fields: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    return {**fields, name: read_record(tuple[str, ...], fields.get(name, []), f"{where}{name}")}
