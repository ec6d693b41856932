"""A bisection as JSON values: ``bisect`` of the contract ``evalguard.compare/1``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evalguard.bisect_report import BisectReport, GuiltySetting, MetricSearch, Repaired


def bisect_document(report: BisectReport | None) -> dict[str, Any] | None:
    """Return a bisection as JSON values; None where there was none."""
    if report is None:
        return None
    first = report.searches[0]
    recommended = report.recommended
    return {
        "status": report.status,
        "culprits": [_culprit(culprit) for culprit in report.culprits],
        "unexplained_sigma": report.unexplained_sigma,
        "drift_sigma": first.drift_sigma,
        "outside_sigma": first.outside_sigma,
        "evaluations": report.evaluations,
        "probes": report.probes,
        "searches": [_search(search) for search in report.searches],
        "repaired": _repaired(report.repaired),
        "recommended": None if recommended is None else asdict(recommended),
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


def _culprit(culprit: GuiltySetting) -> dict[str, Any]:
    return {
        "setting": culprit.setting,
        "reference": culprit.reference,
        "candidate": culprit.candidate,
        "target": culprit.target,
        "sigma_alone": culprit.sigma_alone,
        "alone_error_sigma": culprit.alone_error_sigma,
        "alone_share": culprit.alone_share,
        "sigma_in_context": culprit.sigma_in_context,
        "shapley_sigma": culprit.shapley_sigma,
        "error_sigma": culprit.error_sigma,
        "role": culprit.role,
        "task": culprit.task,
        "filter": culprit.filter,
        "metric": culprit.metric,
    }


def _search(search: MetricSearch) -> dict[str, Any]:
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
        "drift_sigma": search.drift_sigma,
        "outside_sigma": search.outside_sigma,
        "unexplained_sigma": search.unexplained_sigma,
        "culprits": [culprit.setting for culprit in search.culprits],
        "guilty": [_culprit(culprit) for culprit in search.culprits],
        "suspects": [{"setting": s.name, "probability": s.probability} for s in search.suspects],
        "parts": [
            {"settings": list(part.settings), "sigma": part.sigma, "error_sigma": part.error_sigma}
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
        "measured": [{**asdict(one), "settings": list(one.settings)} for one in search.measured],
        "loads": None if search.loads is None else asdict(search.loads),
        "seed": search.seed,
        "ended": search.ended,
        "failure": search.failure,
    }


def _repaired(repaired: Repaired | None) -> dict[str, Any] | None:
    if repaired is None:
        return None
    return {
        "assignment": dict(repaired.assignment),
        "reset": list(repaired.reset),
        "passed": repaired.passed,
        "state": repaired.state,
        "metrics": [asdict(metric) for metric in repaired.metrics],
        "failure": repaired.failure,
    }
