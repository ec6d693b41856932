"""The last sentence of a report with a bisection: the culprits, and what to do next."""

from __future__ import annotations

from evalguard.core.reports.bisect_report import WHOLE_MODEL, BisectReport
from evalguard.core.reports.compare_report import CompareReport
from evalguard.report.words.advice import other_classes, own_code
from evalguard.report.words.bisection_texts import list_answers, list_names
from evalguard.report.words.meaning import (
    Meaning,
    derive_meaning,
    read_as_step,
    search_layers_command,
    trace_command,
)
from evalguard.report.words.plain_text import printable

# Targets that are a place in the model: more than one module may be at fault there.
_INSIDE = ("attr:", "dtype:", "module:", "weights:")


def meaning_with_bisection(report: CompareReport) -> Meaning:
    """Say what a comparison means, together with its bisection where there was one."""
    said = derive_meaning(report)
    if report.bisect is None:
        return said
    step, command = _bisection_next_step(report.bisect, said)
    classes, own, inside = other_classes(report), own_code(report), trace_command(report)
    if not report.bisect.resume and _is_whole_model(report.bisect) and (classes or own):
        # the base in its place would be no repair
        step, command = _own_code_step(report) if classes is None else (read_as_step(classes), "")
    elif not _is_inside(report.bisect):
        inside = ""
    return Meaning(
        lead=said.lead,
        answers=list_answers(report),
        next_step=step,
        command=command,
        trace="" if inside == command else inside,
    )


def _own_code_step(report: CompareReport) -> tuple[str, str]:
    """Where code of the candidate's own is guilty: which layers; a trace says more where it can."""
    layers = search_layers_command(report)
    if not layers:
        return f"port what {own_code(report)} computes otherwise", ""
    return "to see which layers of the candidate's own code it comes from", layers


def _is_whole_model(found: BisectReport) -> bool:
    """Whether the answer is the whole model, or lies outside of what was searched."""
    if found.culprits:
        return all(one.target == WHOLE_MODEL for one in found.culprits)
    return found.status == "not_reproduced" and found.searches[0].outside_sigma > 0.0


def _is_inside(found: BisectReport) -> bool:
    """Whether a culprit has a place in the model, or what makes the drift was not found."""
    placed = any(one.target.startswith(_INSIDE) for one in found.culprits)
    return placed or found.status in ("unexplained", "diffuse", "not_reproduced")


def culprits_text(report: CompareReport) -> str:
    """Return "; culprits: a and b" for the line with the exit code, "" where none is named."""
    culprits = () if report.bisect is None else report.bisect.culprits
    named = "culprit" if len(culprits) == 1 else "culprits"
    return f"; {named}: {list_names([c.setting for c in culprits])}" if culprits else ""


def _bisection_next_step(found: BisectReport, said: Meaning) -> tuple[str, str]:
    if found.resume:
        return "to go on where it stopped", printable(found.resume)
    if found.repaired is not None and found.proof:
        them = list_names(found.repaired.reset)
        step = (
            "to prove the repair"
            if found.repaired.passed
            else f"to see what is left without {them}"
        )
        return step, printable(found.proof)
    if found.status == "diffuse":
        return (
            "repair the group that does most, or look for what its settings have in common; no "
            "single one will do",
            "",
        )
    if found.status == "unexplained" and _mostly_untestable(found):
        return (
            "see why assignments could not run; which settings need each other can be declared as "
            "constraints",
            "",
        )
    if found.status == "unexplained":
        return (
            "search longer (bisect with --thorough), or on more documents (a higher --limit)",
            "",
        )
    if found.status == "not_reproduced" and found.searches[0].outside_sigma > 0.0:
        return "declare what else differs between the two models as settings", ""
    return said.next_step, said.command


def _mostly_untestable(found: BisectReport) -> bool:
    """Whether more than half of what was asked could not be built or run."""
    refused = sum(len(search.untestable) for search in found.searches)
    return 2 * refused > sum(search.probes for search in found.searches)
