"""The JSON contract ``evalguard.compare/1``: one report as one strict JSON document.

Keys are added, never renamed or dropped without a new schema number. JSON has neither infinity
nor NaN: such a number is null, ``non_finite`` says what it was, and a caveat beside it (or a note
of the document) says so to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.core.checksum import with_checksum
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_documents import BROKEN_DOCUMENTS
from evalguard.core.limits import KINDS, LimitVerdict
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.findings import Finding
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.non_finite import (
    NON_FINITE,
    NonFinite,
    null_texts,
    nulls_told,
    replace_non_finite,
)
from evalguard.report.contract.record_schema import (
    CHECKSUM,
    FINDING_KIND,
    LOST,
    add_keys,
    contract_schema,
)

COMPARE_SCHEMA = "evalguard.compare/1"

# Numbers that every comparison has unless something went wrong: null needs a caveat.
EXPECTED = (
    "base",
    "base_stderr",
    "candidate",
    "candidate_stderr",
    "sigma",
    "sigma_interval",
    "paired_stderr",
    "p_value",
    "false_alarm_probability",
)
FAMILY = "gate.family_false_alarm"
# Parts with caveats of their own, which tell of their nulls.
WITH_CAVEATS = ("comparisons", "distributions", "generations")
# Parts whose nulls the notes tell of, in this order.
_WITH_NOTES = (
    "base",
    "candidate",
    "gate",
    "not_compared",
    "environment",
    "sequential",
    "bisect",
    "resources",
)


def compare_document(report: CompareReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values (dict, list, str, int, float, bool, None).

    The last key is the checksum of all the others.
    """
    written = {"schema": COMPARE_SCHEMA, **write_record(report)}
    lost: dict[str, NonFinite] = {}
    for key in _WITH_NOTES:
        written[key] = replace_non_finite(written[key], key, lost)
    absent = [FAMILY] if report.gate.family_false_alarm is None else []
    written["notes"] += null_texts(lost, absent)
    for key in WITH_CAVEATS:
        for number, one in enumerate(written[key]):
            absent = [name for name in EXPECTED if name in one and one[name] is None]
            told = nulls_told(one, "caveats", absent)
            lost |= {f"{key}[{number}].{at}": kind for at, kind in told.pop(NON_FINITE).items()}
            written[key][number] = told
    return with_checksum({**written, NON_FINITE: lost})


def compare_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        COMPARE_SCHEMA,
        CompareReport,
        "A finished evalguard comparison",
        non_finite=LOST,
        checksum=CHECKSUM,
    )
    add_keys(schema, Finding, kind=FINDING_KIND)
    add_keys(schema, LimitVerdict, metric={"enum": [*KINDS, BROKEN_DOCUMENTS]})
    schema["$defs"]["Comparison"]["allOf"] = [
        {
            "if": {"properties": {name: {"type": "null"}}},
            "then": {"properties": {"caveats": {"minItems": 1}}},
        }
        for name in EXPECTED
    ]
    return schema


def distribution_row(distribution: DistributionComparison) -> dict[str, Any]:
    """Return a distribution as one flat row: kl, kl_stderr, kl_low, kl_p99, dp_p0.1, ..."""
    row: dict[str, Any] = {}
    for name, value in write_record(distribution).items():
        if name.endswith("_percentiles"):
            for one in value:
                percent = f"{name.removesuffix('ercentiles')}{one['percent']:g}"
                row |= _figure_columns(percent, one)
        elif name.endswith("_at"):
            row |= {f"{name}_{key}": (value or {}).get(key) for key in _PLACE}
        elif name == "llama_cpp":
            continue
        elif name == "floor":
            row |= {f"floor_{key}": (value or {}).get(key) for key in _FLOOR}
        else:
            row |= _figure_columns(name, value) if isinstance(value, dict) else {name: value}
    return {**row, "caveats": distribution.caveats}


_PLACE = ("doc_id", "request", "position", "token_id")
_FLOOR = ("kl", "times", "variation")


def _figure_columns(name: str, figure: Mapping[str, Any]) -> dict[str, float | None]:
    low, high = figure["interval"] or (None, None)
    least, most = figure["bounds"] or (None, None)
    return {
        name: figure["value"],
        f"{name}_stderr": figure["stderr"],
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_bound_low": least,
        f"{name}_bound_high": most,
    }
