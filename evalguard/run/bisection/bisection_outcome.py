"""What a bisection has found, as it is reported: with the repair, and the command that goes on."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import evalguard
from evalguard.core.redaction import shown_value
from evalguard.core.reports.bisect_report import WHOLE_MODEL, BisectReport, Recommended
from evalguard.run.bisection.bisect_findings import BisectFindings
from evalguard.run.bisection.guard_repair import build_repair
from evalguard.run.bisection.model_search import foresee_evaluations
from evalguard.run_token import keeps_for_itself


def build_bisect_report(
    findings: BisectFindings, *, seconds: float, resumable: bool
) -> BisectReport:
    """Return what was found; there is at least one search.

    Args:
        seconds: that it took.
        resumable: whether the run folder knows what was asked for.
    """
    choices = findings.finished.choices.bisect
    searches = tuple(one.search for one in findings.searches)
    repair = build_repair(findings.finished, findings.values, findings.candidate)
    guilty = {str(one.target) for search in searches for one in search.culprits}
    of_model, trace = guilty == {WHOLE_MODEL}, findings.trace
    return BisectReport(
        searches=searches,
        repaired=findings.repaired,
        recommended=_recommended_values(findings),
        derived=findings.searchable.derived,
        fix=repair.text,
        fix_where=repair.where,
        proof=repair.command,
        resume=_resume_command(findings) if resumable else "",
        seconds=seconds,
        expected=foresee_evaluations(len(searches[0].settings)),
        announced_evaluations=findings.announced,
        budget=choices.budget,
        thorough=choices.thorough,
        jobs=choices.jobs,
        notes=tuple(findings.notes),
        prices=findings.prices,
        traced=trace.first if of_model and trace is not None else None,
        versions={"evalguard": evalguard.__version__, "numpy": version("numpy")},
    )


def _recommended_values(findings: BisectFindings) -> Recommended | None:
    with_values = [one for one in findings.searches if one.recommendation is not None]
    found = [one.recommendation for one in with_values if one.recommendation is not None]
    if not found:
        return None
    settings = {setting.name: setting for setting in findings.candidate.variant.settings}
    values = {
        name: shown_value(findings.values[name], settings[name])
        for one in found
        for name in one.values
        if name in findings.values  # else it ended before they were put right
    }
    if not values:
        return None
    unit = with_values[-1].search.unit
    return Recommended(values=values, drift_sigma=found[-1].drift_sigma, unit=unit)


def _resume_command(findings: BisectFindings) -> str:
    """The command that goes on where this ended too early; "" where it did not."""
    ended = {one.search.ended for one in findings.searches} - {""}
    folder = findings.finished.report.run_folder
    if not folder or not (ended or findings.unfinished):
        return ""
    budget = findings.finished.choices.bisect.budget
    more = f" --budget {2 * budget:g}" if "budget" in ended and budget else ""
    kept = keeps_for_itself()
    more += f" --unchanged-since {kept}" if kept else ""
    return f"evalguard bisect --resume {shlex.quote(folder)}{more}"
