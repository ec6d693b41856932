"""The last sentence of a report with a bisection: the culprits, and what to do next."""

from __future__ import annotations

from evalguard.bisect_report import BisectReport
from evalguard.compare_report import CompareReport
from evalguard.report.bisect_words import answer, listed
from evalguard.report.plain_text import printable
from evalguard.report.sentence import Meaning, meaning


def whole_meaning(report: CompareReport) -> Meaning:
    """Say what a comparison means, together with its bisection where there was one."""
    said = meaning(report)
    if report.bisect is None:
        return said
    told = tuple(f"{answer(search)}." for search in report.bisect.answers)
    step, command = _next(report.bisect, said)
    return Meaning(lead=said.lead, answers=told, next_step=step, command=command)


def culprits_text(report: CompareReport) -> str:
    """Return "; culprits: a and b" for the line with the exit code, "" where none is named."""
    culprits = () if report.bisect is None else report.bisect.culprits
    named = "culprit" if len(culprits) == 1 else "culprits"
    return f"; {named}: {listed([c.setting for c in culprits])}" if culprits else ""


def _next(found: BisectReport, said: Meaning) -> tuple[str, str]:
    if found.resume:
        return "to go on where it stopped", printable(found.resume)
    if found.repaired is not None and found.proof:
        them = listed(found.repaired.reset)
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
    if found.status == "unexplained" and _hardly_any_ran(found):
        return (
            "see why assignments could not run; which settings need each other can be declared as "
            "constraints",
            "",
        )
    if found.status == "unexplained":
        return "search longer (--bisect-thorough), or on more documents (a higher --limit)", ""
    if found.status == "not_reproduced" and found.searches[0].outside_sigma > 0.0:
        return "declare what else differs between the two models as settings", ""
    return said.next_step, said.command


def _hardly_any_ran(found: BisectReport) -> bool:
    """Whether more than half of what was asked could not be built or run."""
    refused = sum(len(search.untestable) for search in found.searches)
    return 2 * refused > sum(search.probes for search in found.searches)
