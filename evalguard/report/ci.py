"""What CI systems read of a comparison: JUnit XML, and annotations of GitHub Actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from evalguard.core.gate_state import GateState
from evalguard.report.view.metric import MetricView
from evalguard.report.view.report import ReportView

# JUnit XML of a comparison: what Jenkins, GitLab and their kin show as a list of tests.
#
# One test case for each gated metric and for each limit: regressed is a failure, no number an
# error, undecided is skipped, and a failure where undecided does not pass (--strict). The
# structure is that of Jenkins' xunit plugin (junit-10): testsuites > testsuite > properties,
# testcase > failure, error, skipped, system-out.


_LONGEST_NAME = 500
_ELEMENT: dict[GateState, str] = {
    "regressed": "failure",
    "failed": "error",
    "undecided": "skipped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    name: str
    state: GateState
    message: str
    output: str = ""


def render_junit(view: ReportView) -> str:
    """Return the whole file. All texts are escaped, and none holds a control character."""
    strict = view.state == "undecided" and view.exit_code != 0
    suites = [(task.name, _metric_cases(task.metrics)) for task in view.tasks]
    limits = [
        _Case(
            name=limit.label,
            state=limit.state,
            message=limit.line,
            output="\n".join(limit.documents),
        )
        for limit in view.limits
    ]
    suites = [(name, cases) for name, cases in (*suites, ("limits", limits)) if cases]
    if not suites or (view.exit_code != 0 and not _has_failures(suites, strict=strict)):
        suites.append(("gate", [_gate_case(view)]))
    root = ElementTree.Element("testsuites", name=_case_name(view.title))
    for name, cases in suites:
        root.append(_suite(view, name, cases, strict=strict))
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _has_failures(suites: Sequence[tuple[str, Sequence[_Case]]], *, strict: bool) -> bool:
    states = {case.state for _, cases in suites for case in cases}
    return bool(states & {"regressed", "failed"}) or (strict and "undecided" in states)


def _gate_case(view: ReportView) -> _Case:
    """The gate as a test: where nothing was compared, no file may look as if all had passed."""
    red = view.state in ("regressed", "failed")
    state: GateState = view.state if red or view.exit_code == 0 else "failed"
    return _Case(name="gate", state=state, message=view.sentence)


def _metric_cases(metrics: Sequence[MetricView]) -> list[_Case]:
    return [
        _Case(
            name=metric.full_label,
            state=metric.gate_state,
            message=f"{metric.outcome}: {metric.reason}",
            output=_case_numbers(metric),
        )
        for metric in metrics
        if metric.gate_state is not None
    ]


def _case_numbers(metric: MetricView) -> str:
    """What is known of a metric, a line each."""
    lines = [
        f"outcome: {metric.outcome}",
        f"base: {metric.base_with_stderr}",
        f"candidate: {metric.candidate_with_stderr}",
        f"sigma: {metric.sigma} {metric.interval}".rstrip(),
        f"p: {metric.p} ({metric.method})",
        f"documents: {metric.n_used} of {metric.n}",
        *(f"caveat: {remark}" for remark in metric.remarks),
    ]
    return "\n".join(lines)


def _suite(
    view: ReportView, name: str, cases: Sequence[_Case], *, strict: bool
) -> ElementTree.Element:
    elements = [_case(view, name, case, strict=strict) for case in cases]
    told = [child.tag for element in elements for child in element]
    suite = ElementTree.Element(
        "testsuite",
        name=_case_name(name),
        tests=str(len(cases)),
        failures=str(told.count("failure")),
        errors=str(told.count("error")),
        skipped=str(told.count("skipped")),
        timestamp=view.created.removesuffix("Z"),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(view):
        ElementTree.SubElement(properties, "property", name=key, value=value)
    suite.extend(elements)
    return suite


def _properties(view: ReportView) -> list[tuple[str, str]]:
    found = (
        ("verdict", view.verdict),
        ("base", f"{view.base.name}: {view.base.about}"),
        ("candidate", f"{view.candidate.name}: {view.candidate.about}"),
        ("guilty", ", ".join(() if view.bisection is None else view.bisection.guilty)),
        ("command", view.command),
        ("run_folder", view.run_folder),
        ("evalguard", view.version),
    )
    return [(key, value) for key, value in found if value]


def _case(view: ReportView, suite: str, case: _Case, *, strict: bool) -> ElementTree.Element:
    # Jenkins shows what stands before the last dot as a package.
    group = f"evalguard.{suite.replace('.', '_')}"
    element = ElementTree.Element(
        "testcase", name=_case_name(case.name), classname=_case_name(group)
    )
    tag = _ELEMENT.get(case.state)
    if tag == "skipped" and strict:
        tag = "failure"
    if tag is not None:
        told = ElementTree.SubElement(element, tag, message=case.message, type=case.state)
        told.text = view.sentence if tag == "failure" else case.message
    if case.output:
        ElementTree.SubElement(element, "system-out").text = case.output
    return element


def _case_name(text: str) -> str:
    """A name that lists can show; its end tells tasks apart."""
    if len(text) <= _LONGEST_NAME:
        return text or "-"
    half = _LONGEST_NAME // 2
    return f"{text[:half]} … {text[-half:]}"


# Annotations of GitHub Actions: workflow commands that a job prints on standard output.
#
# A command is ``::error file=F,line=N,title=T::MESSAGE`` on a line of its own; %, CR and LF are
# escaped in all of it, and ':' and ',' in its properties, as the runner's own toolkit does.
# Whatever else a job prints is read for commands too: text of models goes between ``::stop-
# commands::TOKEN`` and ``::TOKEN::``.


AnnotationLevel = Literal["error", "warning", "notice"]

# GitHub shows ten of a kind for one step.
_MOST_ANNOTATIONS = 9
_LONGEST_MESSAGE = 1000


def render_annotations(view: ReportView) -> str:
    """Return a line for each metric and limit that does not pass, one for culprits, one for all."""
    lines = [annotation_command(_gate_level(view), view.title, f"{view.headline}. {view.sentence}")]
    lines += _limit_count(list(_culprit_annotations(view)))
    lines += _limit_count(list(_metric_annotations(view)))
    return "\n".join(lines) + "\n"


def annotation_command(level: AnnotationLevel, title: str, message: str, *, place: str = "") -> str:
    """Return one command.

    Args:
        place: "FILE:LINE" or "FILE" of the repository, or "".
    """
    found = re.fullmatch(r"(.+?)(?::(\d+))?", place)
    properties = {"file": found[1], "line": found[2]} if found else {}
    shown = ",".join(
        f"{name}={_escape_property(_cut_message(value))}"
        for name, value in {**properties, "title": title}.items()
        if value
    )
    return f"::{level} {shown}::{_escape_data(_cut_message(message))}"


def neutralize_commands(text: str, token: str) -> str:
    """Return ``text`` so that nothing in it is read as a command.

    Args:
        token: that nobody can guess.

    Raises:
        ValueError: if the token is in the text, or none.
    """
    if not token or token in text:
        raise ValueError("the token of ::stop-commands:: must not be in the text")
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def _gate_level(view: ReportView) -> AnnotationLevel:
    if view.exit_code != 0 or view.state in ("regressed", "failed"):
        return "error"
    return _undecided_level(view) if view.state == "undecided" else "notice"


def _undecided_level(view: ReportView) -> AnnotationLevel:
    if view.state == "undecided" and view.exit_code != 0:
        return "error"
    return "notice" if view.when_undecided == "pass" else "warning"


def _metric_annotations(view: ReportView) -> Iterator[str]:
    levels: tuple[tuple[GateState, AnnotationLevel], ...] = (
        ("regressed", "error"),
        ("failed", "error"),
        ("undecided", _undecided_level(view)),
    )
    for state, level in levels:
        for metric in view.metrics:
            if metric.gate_state == state:
                yield annotation_command(
                    level, f"{metric.full_label}: {state}", _metric_numbers(metric)
                )
        for limit in view.limits:
            if limit.state == state:
                told = "\n".join((limit.line, *limit.documents[:_MOST_DOCUMENTS]))
                yield annotation_command(level, f"{limit.label}: {state}", told)


def _metric_numbers(metric: MetricView) -> str:
    drift = f"sigma {metric.sigma} {metric.interval}".rstrip()
    return f"{metric.base} -> {metric.candidate}, {drift}, p {metric.p}. {metric.reason}"


def _culprit_annotations(view: ReportView) -> Iterator[str]:
    found = view.bisection
    place = "" if found is None or found.fix is None else found.fix.where
    for search in () if found is None else found.searches:
        for one in search.culprits:
            message = f"{one.change}: {one.share} {search.unit} of the drift. {search.answer}"
            yield annotation_command("warning", f"culprit: {one.setting}", message, place=place)


_MOST_DOCUMENTS = 5


def _limit_count(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_ANNOTATIONS
    if more <= 0:
        return lines
    return [
        *lines[:_MOST_ANNOTATIONS],
        annotation_command("notice", "evalguard", f"{more} more are in the summary"),
    ]


def _cut_message(text: str) -> str:
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} … {text[-half:]}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
