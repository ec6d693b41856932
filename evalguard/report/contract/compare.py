"""The JSON contract ``evalguard.compare/1``: one report as one strict JSON document.

Keys are added, never renamed or dropped without a new schema number. JSON has neither infinity
nor NaN: such a number is null, and a caveat beside it (or a note of the document) says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.core.across_tasks import AcrossTasks
from evalguard.core.checksum import with_checksum
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.gate import GateResult
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.generations import GenerationComparison
from evalguard.core.reports.resources import Resources
from evalguard.report.contract.bisection import bisection_fields
from evalguard.report.contract.json_values import (
    PEAKS,
    in_schema_order,
    key_fields,
    null_texts,
    nulls_told,
    read_schema,
    record_fields,
    replace_non_finite,
)

COMPARE_SCHEMA = "evalguard.compare/1"

# Numbers that every comparison has unless something went wrong: null needs a caveat.
_EXPECTED = (
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
# Parts whose nulls the notes tell of, in this order.
_WITH_NOTES = (
    "base",
    "candidate",
    "gate",
    "not_compared",
    "environment",
    "across_tasks",
    "sequential",
    "bisect",
    "resources",
)


def compare_document(report: CompareReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values (dict, list, str, int, float, bool, None).

    Its keys stand in the schema's order; the last one is the checksum of all the others.
    """
    written = in_schema_order(_report_fields(report), compare_schema())
    lost: list[str] = []
    if report.gate.family_false_alarm is None:
        lost.append("gate.family_false_alarm does not exist")
    for key in _WITH_NOTES:
        written[key] = replace_non_finite(written[key], key, lost)
    written["notes"] += null_texts(lost)
    written["comparisons"] = [_with_caveats(one) for one in written["comparisons"]]
    for key in ("distributions", "generations"):
        written[key] = [nulls_told(one, "caveats") for one in written[key]]
    return with_checksum(written)


def compare_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    return read_schema("compare")


def _report_fields(report: CompareReport) -> dict[str, Any]:
    """The report's values by the document's keys, in any order, finite or not."""
    fields = record_fields(report)
    return {
        "schema": COMPARE_SCHEMA,
        "evalguard": fields.pop("version"),
        **fields,
        "gate": _gate_fields(report.gate),
        "distributions": [_distribution_fields(one) for one in report.distributions],
        "generations": [_generation_fields(one) for one in report.generations],
        "across_tasks": _across_fields(report.across_tasks),
        "bisect": bisection_fields(report.bisect),
        "resources": _resources_fields(report.resources),
    }


def _gate_fields(gate: GateResult) -> dict[str, Any]:
    fields = record_fields(gate)
    for state in ("regressed", "undecided", "failed"):
        del fields[state]  # each gated metric says its own
    p_values = zip(gate.gated, fields.pop("holm_p_values"), strict=True)
    gated = [
        {**key_fields(key), "holm_p_value": p_value, "state": gate.state_of(key)}
        for key, p_value in p_values
    ]
    accepted = [{**one["waiver"], **key_fields(one["key"])} for one in fields["accepted"]]
    return {**fields, "gated": gated, "accepted": accepted}


def _across_fields(across: AcrossTasks | None) -> dict[str, Any] | None:
    if across is None:
        return None
    return {
        **record_fields(across),
        "metrics": [key_fields(key) for key in across.metrics],
        "max_z_metric": key_fields(across.max_z_metric),
        "left_out": [{**key_fields(key), "reason": reason} for key, reason in across.left_out],
    }


def _resources_fields(resources: Resources | None) -> dict[str, Any] | None:
    if resources is None:
        return None
    fields = record_fields(resources)
    peaks = {written: fields.pop(name) for name, written in PEAKS.items()}
    more = {"tokens": resources.tokens, "tokens_per_second": resources.tokens_per_second}
    return {**fields, **peaks, **more}


def _distribution_fields(distribution: DistributionComparison) -> dict[str, Any]:
    fields = {**record_fields(distribution), "moved": distribution.moved}
    for name in ("kl_percentiles", "dp_percentiles"):
        fields[name] = [{"percent": one["percent"], **one["figure"]} for one in fields[name]]
    return fields


def _generation_fields(one: GenerationComparison) -> dict[str, Any]:
    fields = record_fields(one)
    fields["parts"] = [
        {**part, "share": of.share} for part, of in zip(fields["parts"], one.parts, strict=True)
    ]
    return fields


def _with_caveats(comparison: Mapping[str, Any]) -> dict[str, Any]:
    lost = [f"{name} does not exist" for name in _EXPECTED if comparison[name] is None]
    return nulls_told(comparison, "caveats", lost)


def distribution_row(distribution: DistributionComparison) -> dict[str, Any]:
    """Return a distribution as one flat row: kl, kl_stderr, kl_low, kl_p99, dp_p0.1, ..."""
    part = {**compare_schema(), "$ref": "#/$defs/distribution"}
    row: dict[str, Any] = {}
    for name, value in in_schema_order(_distribution_fields(distribution), part).items():
        if name.endswith("_percentiles"):
            for one in value:
                percent = f"{name.removesuffix('ercentiles')}{one['percent']:g}"
                row |= _figure_columns(percent, one)
        elif name.endswith("_at"):
            row |= {f"{name}_{key}": (value or {}).get(key) for key in _PLACE}
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
