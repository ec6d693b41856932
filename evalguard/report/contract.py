"""The JSON contract ``evalguard.compare/1``: one report as one strict JSON document.

Keys are added, never renamed or dropped without a new schema number. JSON has neither infinity nor
NaN: such a number is null, and a caveat beside it (or a note of the document) says which.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

from evalguard.checksum import with_checksum
from evalguard.compare_report import CompareReport, RunIdentity
from evalguard.comparison import Comparison
from evalguard.distribution_comparison import DistributionComparison
from evalguard.report.accepted import accepted_document
from evalguard.report.across_tasks import across_document
from evalguard.report.bisect_document import bisect_document
from evalguard.report.distributions import distribution_document
from evalguard.report.influence import influence_document
from evalguard.report.limits import limit_document
from evalguard.report.resources import resources_document
from evalguard.report.stopping import sequential_document, stopping_document

SCHEMA = "evalguard.compare/1"

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


def document(report: CompareReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values (dict, list, str, int, float, bool, None).

    Its last key is the checksum of all the others.
    """
    notes = list(report.notes)
    content = {
        "base": side_document(report.base),
        "candidate": side_document(report.candidate),
        "gate": _gate(report),
        "not_compared": [
            {"task": m.task, "filter": m.filter, "metric": m.metric, "reason": m.reason}
            for m in report.not_compared
        ],
        "environment": dict(report.environment),
        "across_tasks": across_document(report.across_tasks),
        "sequential": sequential_document(report.sequential),
        "bisect": bisect_document(report.bisect),
        "resources": resources_document(report.resources),
    }
    lost: list[str] = []
    if report.gate.family_false_alarm is None:
        lost.append("gate.family_false_alarm does not exist")
    values = {key: plain(value, key, lost) for key, value in content.items()}
    notes += [f"{name}, so it is null here" for name in lost]
    written = {
        "schema": SCHEMA,
        "evalguard": report.version,
        "created": report.created,
        "command": report.command,
        "base": values["base"],
        "candidate": values["candidate"],
        "comparisons": [_comparison(comparison) for comparison in report.comparisons],
        "distributions": [_distribution(one) for one in report.distributions],
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


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    file = resources.files("evalguard.report").joinpath("compare.schema.json")
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def side_document(side: RunIdentity) -> dict[str, Any]:
    """Return one side of a comparison as plain JSON values."""
    return {
        "name": side.name,
        "digest": side.digest,
        "kind": side.kind,
        "description": side.description,
        "effective": dict(side.effective),
        "settings": [
            {
                "name": setting.name,
                "value": setting.value,
                "reference": setting.reference,
                "candidate": setting.candidate,
                "target": setting.target,
                "effective": setting.effective,
            }
            for setting in side.settings
        ],
    }


def _gate(report: CompareReport) -> dict[str, Any]:
    gate = report.gate
    return {
        "passed": gate.passed,
        "state": gate.state,
        "margin": gate.margin,
        "margin_text": gate.margin_text,
        "fail_on": gate.fail_on,
        "confidence": gate.confidence,
        "family_false_alarm": gate.family_false_alarm,
        "family_false_alarm_independent": gate.family_false_alarm_independent,
        "family_false_alarm_estimate": gate.family_false_alarm_estimate,
        "gated": [
            {
                "task": task,
                "filter": filter_,
                "metric": metric,
                "holm_p_value": p_value,
                "state": gate.state_of((task, filter_, metric)),
            }
            for (task, filter_, metric), p_value in zip(gate.gated, gate.holm_p_values, strict=True)
        ],
        "limits": [limit_document(verdict) for verdict in gate.limits],
        "accepted": [accepted_document(one) for one in gate.accepted],
        "reason": gate.reason,
    }


def _distribution(distribution: DistributionComparison) -> dict[str, Any]:
    lost: list[str] = []
    written = distribution_document(distribution)
    values = {key: plain(value, key, lost) for key, value in written.items()}
    values["caveats"] = [*distribution.caveats, *(f"{what}, so it is null here" for what in lost)]
    return values


def _comparison(comparison: Comparison) -> dict[str, Any]:
    fields = {**_numbers(comparison), **_beside(comparison)}
    lost = [f"{name} does not exist" for name in _EXPECTED if fields[name] is None]
    values = {key: plain(value, key, lost) for key, value in fields.items()}
    values["caveats"] = [*comparison.caveats, *(f"{what}, so it is null here" for what in lost)]
    return values


def _numbers(comparison: Comparison) -> dict[str, Any]:
    return {
        "task": comparison.task,
        "filter": comparison.filter,
        "metric": comparison.metric,
        "higher_is_better": comparison.higher_is_better,
        "n": comparison.n,
        "n_used": comparison.n_used,
        "n_total": comparison.n_total,
        "base": comparison.base,
        "base_stderr": comparison.base_stderr,
        "candidate": comparison.candidate,
        "candidate_stderr": comparison.candidate_stderr,
        "margin": comparison.margin,
        "margin_text": comparison.margin_text,
        "sigma": comparison.sigma,
        "sigma_interval": _ends(comparison.sigma_interval),
        "paired_stderr": comparison.paired_stderr,
        "p_value": comparison.p_value,
        "mid_p_value": comparison.mid_p_value,
        "subtasks": list(comparison.subtasks),
        "subgroups": list(comparison.subgroups),
        "bh_q_value": comparison.bh_q_value,
        "method": comparison.method,
        "confidence": comparison.confidence,
        "false_alarm_probability": comparison.false_alarm_probability,
        "outcome": comparison.outcome,
        "significant": comparison.significant,
        "certain": comparison.certain,
        "bit_identical": comparison.bit_identical,
        "reason": comparison.reason,
        "clusters": comparison.clusters,
        "cluster_field": comparison.cluster_field,
        "needed_n": comparison.needed_n,
        "flips": None if comparison.flips is None else list(comparison.flips),
        "churn": comparison.churn,
        "same_answer": comparison.same_answer,
        "same_answer_interval": _ends(comparison.same_answer_interval),
    }


def _beside(comparison: Comparison) -> dict[str, Any]:
    """What stands beside a comparison's own numbers."""
    return {
        "influence": influence_document(comparison.influence),
        "floor": None if comparison.floor is None else asdict(comparison.floor),
        "companions": [
            {
                "method": test.method,
                "p_value": test.p_value,
                "resamples": test.resamples,
                "seed": test.seed,
                "note": test.note,
                "sigma_interval": None
                if test.sigma_interval is None
                else list(test.sigma_interval),
            }
            for test in comparison.companions
        ],
        "stopping": stopping_document(comparison.stopping),
    }


def _ends(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def plain(value: Any, name: str, lost: list[str]) -> Any:
    """Replace what JSON cannot hold by null, and add to ``lost`` what that was."""
    if isinstance(value, float) and not math.isfinite(value):
        kind = "not a number" if math.isnan(value) else f"{'+' if value > 0 else '-'}infinite"
        lost.append(f"{name} is {kind}")
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}.{key}", lost) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{name}[{i}]", lost) for i, item in enumerate(value)]
    return value
