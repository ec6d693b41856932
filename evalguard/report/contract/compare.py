"""The JSON contract ``evalguard.compare/1``: one report as one strict JSON document.

Keys are added, never renamed or dropped without a new schema number. JSON has neither infinity
nor NaN: such a number is null, and a caveat beside it (or a note of the document) says which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

from evalguard.core.comparison import Comparison
from evalguard.core.noise_floor import DistributionComparison, Figure
from evalguard.core.reports.compare import CompareReport, RunIdentity
from evalguard.core.settings import with_checksum
from evalguard.report.contract.bisection import bisection_document
from evalguard.report.words.costs import resources_document
from evalguard.report.words.drift import across_document
from evalguard.report.words.gate import accepted_document
from evalguard.report.words.labels import key_document

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


def compare_document(report: CompareReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values (dict, list, str, int, float, bool, None).

    Its last key is the checksum of all the others.
    """
    notes = list(report.notes)
    content = {
        "base": side_document(report.base),
        "candidate": side_document(report.candidate),
        "gate": _gate_document(report),
        "not_compared": [asdict(one) for one in report.not_compared],
        "environment": dict(report.environment),
        "across_tasks": across_document(report.across_tasks),
        "sequential": None if report.sequential is None else asdict(report.sequential),
        "bisect": bisection_document(report.bisect),
        "resources": resources_document(report.resources),
    }
    lost: list[str] = []
    if report.gate.family_false_alarm is None:
        lost.append("gate.family_false_alarm does not exist")
    values = {key: replace_non_finite(value, key, lost) for key, value in content.items()}
    notes += [f"{name}, so it is null here" for name in lost]
    written = {
        "schema": COMPARE_SCHEMA,
        "evalguard": report.version,
        "created": report.created,
        "command": report.command,
        "base": values["base"],
        "candidate": values["candidate"],
        "comparisons": [_comparison_document(comparison) for comparison in report.comparisons],
        "distributions": [_distribution_with_caveats(one) for one in report.distributions],
        "not_compared": values["not_compared"],
        "gate": values["gate"],
        "across_tasks": values["across_tasks"],
        "across_tasks_reason": report.across_tasks_reason,
        "sequential": values["sequential"],
        "bisect": values["bisect"],
        "bisect_reason": report.bisect_reason,
        "resources": values["resources"],
        "tracked": [asdict(sent) for sent in report.tracked],
        "environment": values["environment"],
        "notes": notes,
        "run_folder": report.run_folder,
        "files": None if report.files is None else dict(report.files),
        "exit_code": report.exit_code,
    }
    return with_checksum(written)


def compare_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    file = resources.files("evalguard.report").joinpath("compare.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def side_document(side: RunIdentity) -> dict[str, Any]:
    """Return one side of a comparison as plain JSON values."""
    return asdict(side)


def _gate_document(report: CompareReport) -> dict[str, Any]:
    gate = report.gate
    keys = zip(gate.gated, gate.holm_p_values, strict=True)
    return {
        **{name: getattr(gate, name) for name in _GATE_FIELDS},
        "gated": [
            {**key_document(key), "holm_p_value": p_value, "state": gate.state_of(key)}
            for key, p_value in keys
        ],
        "limits": [asdict(verdict) for verdict in gate.limits],
        "accepted": [accepted_document(one) for one in gate.accepted],
    }


_GATE_FIELDS = (
    "passed",
    "state",
    "margin",
    "margin_text",
    "fail_on",
    "confidence",
    "family_false_alarm",
    "family_false_alarm_independent",
    "family_false_alarm_estimate",
    "reason",
)


def _distribution_with_caveats(distribution: DistributionComparison) -> dict[str, Any]:
    lost: list[str] = []
    written = distribution_document(distribution)
    values = {key: replace_non_finite(value, key, lost) for key, value in written.items()}
    values["caveats"] = [*distribution.caveats, *(f"{what}, so it is null here" for what in lost)]
    return values


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    fields = asdict(comparison)
    caveats = fields.pop("caveats")
    lost = [f"{name} does not exist" for name in _EXPECTED if fields[name] is None]
    values = {key: replace_non_finite(value, key, lost) for key, value in fields.items()}
    values["caveats"] = [*caveats, *(f"{what}, so it is null here" for what in lost)]
    return values


def replace_non_finite(value: Any, name: str, lost: list[str]) -> Any:
    """Replace what JSON cannot hold by null, and add to ``lost`` what that was."""
    if isinstance(value, float) and not math.isfinite(value):
        kind = "not a number" if math.isnan(value) else f"{'+' if value > 0 else '-'}infinite"
        lost.append(f"{name} is {kind}")
        return None
    if isinstance(value, Mapping):
        return {
            str(key): replace_non_finite(item, f"{name}.{key}", lost) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item, f"{name}[{i}]", lost) for i, item in enumerate(value)]
    return value


# How two models' distributions differ: for the JSON document.


_FIGURE_FIELDS = (
    "kl",
    "dp",
    "dp_rms",
    "same_top1",
    "same_topk",
    "base_perplexity",
    "candidate_perplexity",
    "log_perplexity_ratio",
    "perplexity_ratio",
    "perplexity_difference",
)
_PLAIN_FIELDS = (
    "task",
    "n",
    "positions",
    "top_k",
    "confidence",
    "exact",
    "bit_identical",
    "moved",
    "correlation",
    "clusters",
    "cluster_field",
    "failure",
)


def distribution_document(distribution: DistributionComparison) -> dict[str, Any]:
    """Return one task's distributions as JSON values, but for infinite numbers and caveats."""
    fields = asdict(distribution)
    fields["moved"] = distribution.moved
    del fields["caveats"]
    for name in ("kl_percentiles", "dp_percentiles"):
        fields[name] = [{"percent": one["percent"], **one["figure"]} for one in fields[name]]
    return fields


def distribution_row(distribution: DistributionComparison) -> dict[str, Any]:
    """Return the same numbers as one flat row: kl, kl_stderr, kl_low, kl_p99, dp_p0.1, ..."""
    row = {name: getattr(distribution, name) for name in _PLAIN_FIELDS}
    for name in _FIGURE_FIELDS:
        row |= _figure_columns(name, getattr(distribution, name))
    for name in ("kl", "dp"):
        for percentile in getattr(distribution, f"{name}_percentiles"):
            row |= _figure_columns(f"{name}_p{percentile.percent:g}", percentile.figure)
    for name in ("kl_max_at", "dp_min_at"):
        place = getattr(distribution, name)
        row |= {
            f"{name}_{key}": getattr(place, key, None)
            for key in ("doc_id", "request", "position", "token_id")
        }
    for name in ("kl", "times", "variation"):
        row[f"floor_{name}"] = getattr(distribution.floor, name, None)
    return {**row, "caveats": distribution.caveats}


def _figure_columns(name: str, figure: Figure) -> dict[str, float | None]:
    low, high = figure.interval or (None, None)
    least, most = figure.bounds or (None, None)
    return {
        name: figure.value,
        f"{name}_stderr": figure.stderr,
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_bound_low": least,
        f"{name}_bound_high": most,
    }
