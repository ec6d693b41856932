"""What a bisection means for whoever reads the comparison: the cause in a line, and what to do."""

from __future__ import annotations

from evalguard.bisect.bisect_report import WHOLE_MODEL, BisectReport, MetricSearch
from evalguard.bisect.bisect_words import (
    list_answers,
    search_drift_phrase,
    search_subject,
    shares_text,
)
from evalguard.core.compare_report import CompareReport
from evalguard.core.verdict import SIGMA
from evalguard.page.phrases import list_names
from evalguard.page.safe_text import printable
from evalguard.report.meaning import (
    Meaning,
    other_classes,
    own_code,
    read_as_step,
    search_layers_command,
    trace_command,
)

# Targets that are a place in the model: more than one module may be at fault there.
_INSIDE = ("attr:", "dtype:", "module:", "weights:")


def explain_bisection(report: CompareReport, said: Meaning) -> Meaning:
    """Return what a comparison means together with its bisection.

    Args:
        said: what it means without.
    """
    bisection: BisectReport = report.bisect
    step, command = _bisection_next_step(bisection, said)
    classes, own, inside = other_classes(report), own_code(report), trace_command(report)
    if not bisection.resume and _is_whole_model(bisection) and (classes or own):
        # the base in its place would be no repair
        step, command = _own_code_step(report) if classes is None else (read_as_step(classes), "")
    elif not _is_inside(bisection):
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
        return all(culprit.target == WHOLE_MODEL for culprit in found.culprits)
    return found.status == "not_reproduced" and found.searches[0].outside_sigma > 0.0


def _is_inside(found: BisectReport) -> bool:
    """Whether a culprit has a place in the model, or what makes the drift was not found."""
    placed = any(culprit.target.startswith(_INSIDE) for culprit in found.culprits)
    return placed or found.status in ("unexplained", "diffuse", "not_reproduced")


def culprits_text(found: BisectReport) -> str:
    """Return "; culprits: a and b" for the line with the exit code, "" where none is named."""
    named = "culprit" if len(found.culprits) == 1 else "culprits"
    names = [culprit.setting for culprit in found.culprits]
    return f"; {named}: {list_names(names)}" if names else ""


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


def bisection_cause(report: CompareReport, step: str) -> str:
    """Say in a line which settings the drift comes from, and what is left without them.

    Args:
        step: of a chain of models, where the report is of one; "".
    """
    head = f"Cause in {step}:" if step else "Cause:"
    bisection: BisectReport = report.bisect
    whole = [search for search in bisection.answers if not search.inside]
    settled = all(search.status in ("minimal", "masked") for search in whole)
    if not bisection.culprits or not settled:
        if all(search.status == "stopped" for search in whole):  # that it ended early is no cause
            head = f"Bisection of {step}:" if step else "Bisection:"
        return f"{head} {' '.join(list_answers(report))}"
    classes = other_classes(report)
    of_model = all(culprit.target == WHOLE_MODEL for culprit in bisection.culprits)
    if of_model and classes is None and own_code(report):
        rest = _remaining_text(bisection, whole[-1]) + _left_of(report, whole[-1])
        return (
            f"{head} the candidate as a whole, its own code ({own_code(report)}) or its weights"
            f"{_traced_text(bisection)}; with the base in its place, {rest}{_still_text(bisection)}"
        )
    if of_model and classes is not None:
        rest = _remaining_text(bisection, whole[-1]) + _left_of(report, whole[-1])
        return (
            f"{head} another class of model, {classes[1]} where the base is {classes[0]}; read as "
            f"the base, {rest}{_still_text(bisection)}"
        )
    keys = list(dict.fromkeys((search.key, search.unit) for search in whole))
    sentences = []
    for key in keys:
        searches = [search for search in whole if (search.key, search.unit) == key]
        of = f"{search_subject(searches[0])}: " if len(keys) > 1 else ""
        rest = _remaining_text(bisection, searches[-1]) + (
            "" if of else _left_of(report, searches[-1])
        )
        sentences.append(f"{of}{shares_text(bisection, searches)}; {rest}")
    return f"{head} {'. '.join(sentences)}{_still_text(bisection)}"


def _traced_text(found: BisectReport) -> str:
    """Where in a whole model a trace finds the error, which is then what to repair."""
    origin = found.traced
    if origin is None:
        return ""
    where = f"{printable(origin.module)}, {printable(origin.operation)}"
    return f" (by the trace in {printable(origin.folder)} it begins at {where}: repair that)"


def _remaining_text(found: BisectReport, last: MetricSearch) -> str:
    """What is left of one metric's drift without the culprits."""
    repaired, unexplained = found.repaired, last.unexplained_sigma
    if repaired is not None and not repaired.failure and last.unit == SIGMA:
        key = (last.task, last.filter, last.metric)
        known = (m.sigma for m in repaired.metrics if (m.task, m.filter, m.metric) == key)
        unexplained = next((sigma for sigma in known if sigma is not None), unexplained)
    return f"{search_drift_phrase(unexplained, last, sigmas='')} left"


def _left_of(report: CompareReport, search: MetricSearch) -> str:
    """The metric that a rest is of, where distributions beside it may keep a rest of theirs."""
    apart = any(
        not distribution.failure and not distribution.bit_identical
        for distribution in report.distributions
    )
    return f" of {printable(search.metric)}" if apart and search.unit == SIGMA else ""


def _still_text(found: BisectReport) -> str:
    """What the gate says of the candidate without its culprits, where it does not pass."""
    repaired = found.repaired
    if repaired is None or repaired.failure or repaired.passed:
        return ""
    return f", still {repaired.state}"
