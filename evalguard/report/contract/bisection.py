"""A bisection as JSON values: ``bisect`` of the contract ``evalguard.compare/1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.core.reports.bisect_report import SIGMA, BisectReport
from evalguard.report.contract.json_values import record_fields

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


def bisection_fields(report: BisectReport | None) -> dict[str, Any] | None:
    """Return a bisection's values by the document's keys; None where there was none."""
    if report is None:
        return None
    fields = record_fields(report)
    first, recommended = report.searches[0], fields["recommended"]
    drifts = _in_any_unit(
        first.unit,
        {
            "drift_sigma": first.drift_sigma,
            "outside_sigma": first.outside_sigma,
            "unexplained_sigma": report.unexplained_sigma,
        },
    )
    return {
        "expected_evaluations": fields.pop("expected"),
        **fields,
        **drifts,
        "status": report.status,
        "culprits": [_in_any_unit(one.unit, record_fields(one)) for one in report.culprits],
        "evaluations": report.evaluations,
        "probes": report.probes,
        "searches": [_search_fields(one) for one in fields["searches"]],
        "recommended": recommended and _in_any_unit(recommended["unit"], recommended),
    }


def _search_fields(search: Mapping[str, Any]) -> dict[str, Any]:
    unit, culprits = search["unit"], search["culprits"]
    return {
        **_in_any_unit(unit, search),
        "culprits": [one["setting"] for one in culprits],
        "guilty": [_in_any_unit(one["unit"], one) for one in culprits],
        "suspects": [{"setting": one.pop("name"), **one} for one in search["suspects"]],
        "parts": [_in_any_unit(unit, one) for one in search["parts"]],
        "measured": [_in_any_unit(unit, one) for one in search["measured"]],
    }


def _in_any_unit(unit: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with the drifts among them in ``unit``, null under the names of sigma alone."""
    drifts = {name: fields[own] for name, own in _SIGMA_NAMES.items() if own in fields}
    of_sigma = {_SIGMA_NAMES[n]: value if unit == SIGMA else None for n, value in drifts.items()}
    return {**fields, "unit": unit, **drifts, **of_sigma}


def rename_to_sigma(found: Mapping[str, Any]) -> dict[str, Any]:
    """Drifts of a document under the names of ``bisect_report``, in whatever unit they are."""
    return {**found, **{_SIGMA_NAMES[n]: found[n] for n in _SIGMA_NAMES if n in found}}
