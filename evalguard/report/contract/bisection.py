"""A bisection as JSON values: ``bisect`` of the contract ``evalguard.compare/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evalguard.core.reports.bisection import (
    SIGMA,
    BisectReport,
    GuiltySetting,
    Measured,
    MetricSearch,
    Repaired,
)
from evalguard.report.words.gate import limit_document

# Drifts by the names they have in any unit; those of sigma alone have been there for longer.
_SIGMA_NAMES = {
    "drift": "drift_sigma",
    "outside": "outside_sigma",
    "unexplained": "unexplained_sigma",
    "alone": "sigma_alone",
    "alone_error": "alone_error_sigma",
    "in_context": "sigma_in_context",
    "shapley": "shapley_sigma",
    "amount": "sigma",
    "error": "error_sigma",
}


def bisection_document(report: BisectReport | None) -> dict[str, Any] | None:
    """Return a bisection as JSON values; None where there was none."""
    if report is None:
        return None
    first = report.searches[0]
    recommended = report.recommended
    return {
        "status": report.status,
        "culprits": [_culprit_document(culprit) for culprit in report.culprits],
        **_drifts_in_unit(
            first.unit,
            unexplained=report.unexplained_sigma,
            drift=first.drift_sigma,
            outside=first.outside_sigma,
        ),
        "evaluations": report.evaluations,
        "probes": report.probes,
        "searches": [_search_document(search) for search in report.searches],
        "repaired": _repaired_document(report.repaired),
        "recommended": None
        if recommended is None
        else {
            "values": dict(recommended.values),
            **_drifts_in_unit(recommended.unit, drift=recommended.drift_sigma),
        },
        "derived": report.derived,
        "fix": report.fix,
        "fix_where": report.fix_where,
        "proof": report.proof,
        "resume": report.resume,
        "seconds": report.seconds,
        "expected_evaluations": list(report.expected),
        "budget": report.budget,
        "thorough": report.thorough,
        "jobs": report.jobs,
        "method": report.method,
        "versions": dict(report.versions),
        "notes": list(report.notes),
    }


def _culprit_document(culprit: GuiltySetting) -> dict[str, Any]:
    return {
        "setting": culprit.setting,
        "reference": culprit.reference,
        "candidate": culprit.candidate,
        "target": culprit.target,
        **_drifts_in_unit(
            culprit.unit,
            alone=culprit.sigma_alone,
            alone_error=culprit.alone_error_sigma,
            in_context=culprit.sigma_in_context,
            shapley=culprit.shapley_sigma,
            error=culprit.error_sigma,
        ),
        "alone_share": culprit.alone_share,
        "role": culprit.role,
        "task": culprit.task,
        "filter": culprit.filter,
        "metric": culprit.metric,
    }


def _search_document(search: MetricSearch) -> dict[str, Any]:
    return {
        "task": search.task,
        "filter": search.filter,
        "metric": search.metric,
        "status": search.status,
        "n": search.n,
        "margin": search.margin,
        "settings": list(search.settings),
        "repaired_before": list(search.repaired_before),
        "inside": list(search.inside),
        "coarse": search.coarse,
        "log_unit": search.log_unit,
        **_drifts_in_unit(
            search.unit,
            drift=search.drift_sigma,
            outside=search.outside_sigma,
            unexplained=search.unexplained_sigma,
        ),
        "culprits": [culprit.setting for culprit in search.culprits],
        "guilty": [_culprit_document(culprit) for culprit in search.culprits],
        "suspects": [
            {"setting": s.name, "probability": s.probability, "p_value": s.p_value}
            for s in search.suspects
        ],
        "parts": [
            {
                "settings": list(part.settings),
                **_drifts_in_unit(search.unit, amount=part.sigma, error=part.error_sigma),
            }
            for part in search.parts
        ],
        "cleared": list(search.cleared),
        "inert": list(search.inert),
        "untestable": [
            {"settings": list(one.settings), "outcome": one.outcome, "reason": one.reason}
            for one in search.untestable
        ],
        "evaluations": search.evaluations,
        "probes": search.probes,
        "measured": [_measured_document(one, search.unit) for one in search.measured],
        "loads": None if search.loads is None else asdict(search.loads),
        "seed": search.seed,
        "ended": search.ended,
        "failure": search.failure,
    }


def _repaired_document(repaired: Repaired | None) -> dict[str, Any] | None:
    if repaired is None:
        return None
    return {
        "assignment": dict(repaired.assignment),
        "reset": list(repaired.reset),
        "passed": repaired.passed,
        "state": repaired.state,
        "metrics": [asdict(metric) for metric in repaired.metrics],
        "limits": [limit_document(one) for one in repaired.limits],
        "failure": repaired.failure,
    }


def _measured_document(one: Measured, unit: str) -> dict[str, Any]:
    found = {**asdict(one), "settings": list(one.settings)}
    return {**found, **_drifts_in_unit(unit, drift=one.drift_sigma, error=one.error_sigma)}


def _drifts_in_unit(unit: str, **drifts: float | None) -> dict[str, Any]:
    """Drifts with their unit; those that are called sigma are null in any other."""
    of_sigma = {_SIGMA_NAMES[n]: value if unit == SIGMA else None for n, value in drifts.items()}
    return {"unit": unit, **drifts, **of_sigma}


def rename_to_sigma(found: Mapping[str, Any]) -> dict[str, Any]:
    """Drifts of a document under the names of ``bisect_report``, in whatever unit they are."""
    return {**found, **{_SIGMA_NAMES[n]: found[n] for n in _SIGMA_NAMES if n in found}}
