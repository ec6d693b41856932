"""A bisection as JSON values: ``bisect`` of the contract ``evalguard.compare/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from evalguard.core.reports.bisection import (
    SIGMA,
    BisectReport,
    GuiltySetting,
    MetricSearch,
)

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
        "repaired": None if report.repaired is None else asdict(report.repaired),
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
    fields = asdict(culprit)
    drifts = _drifts_in_unit(
        culprit.unit,
        alone=culprit.sigma_alone,
        alone_error=culprit.alone_error_sigma,
        in_context=culprit.sigma_in_context,
        shapley=culprit.shapley_sigma,
        error=culprit.error_sigma,
    )
    return {**fields, **drifts}


def _search_document(search: MetricSearch) -> dict[str, Any]:
    drifts = _drifts_in_unit(
        search.unit,
        drift=search.drift_sigma,
        outside=search.outside_sigma,
        unexplained=search.unexplained_sigma,
    )
    return {
        **asdict(search),
        **drifts,
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
        "measured": [
            {
                **asdict(one),
                **_drifts_in_unit(search.unit, drift=one.drift_sigma, error=one.error_sigma),
            }
            for one in search.measured
        ],
    }


def _drifts_in_unit(unit: str, **drifts: float | None) -> dict[str, Any]:
    """Drifts with their unit; those that are called sigma are null in any other."""
    of_sigma = {_SIGMA_NAMES[n]: value if unit == SIGMA else None for n, value in drifts.items()}
    return {"unit": unit, **drifts, **of_sigma}


def rename_to_sigma(found: Mapping[str, Any]) -> dict[str, Any]:
    """Drifts of a document under the names of ``bisect_report``, in whatever unit they are."""
    return {**found, **{_SIGMA_NAMES[n]: found[n] for n in _SIGMA_NAMES if n in found}}
