"""JUnit XML of a comparison: what Jenkins, GitLab and their kin show as a list of tests.

One test case for each gated metric and for each limit: regressed is a failure, no number an
error, undecided is skipped, and a failure where undecided does not pass (--strict). The
structure is that of Jenkins' xunit plugin (junit-10): testsuites > testsuite > properties,
testcase > failure, error, skipped, system-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from evalguard.core.gate_state import GateState
from evalguard.report.compare_view import ReportView
from evalguard.report.metric_view import MetricView

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
    tags = [child.tag for element in elements for child in element]
    suite = ElementTree.Element(
        "testsuite",
        name=_case_name(name),
        tests=str(len(cases)),
        failures=str(tags.count("failure")),
        errors=str(tags.count("error")),
        skipped=str(tags.count("skipped")),
        timestamp=view.created.removesuffix("Z"),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(view):
        ElementTree.SubElement(properties, "property", name=key, value=value)
    suite.extend(elements)
    return suite


def _properties(view: ReportView) -> list[tuple[str, str]]:
    properties = (
        ("verdict", view.verdict),
        *(("note", text) for text in view.findings),
        ("base", f"{view.base.name}: {view.base.about}"),
        ("candidate", f"{view.candidate.name}: {view.candidate.about}"),
        ("guilty", ", ".join(() if view.bisection is None else view.bisection.guilty)),
        ("command", view.command),
        ("run_folder", view.run_folder),
        ("evalguard", view.version),
    )
    return [(key, value) for key, value in properties if value]


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
        detail = ElementTree.SubElement(element, tag, message=case.message, type=case.state)
        detail.text = view.sentence if tag == "failure" else case.message
    if case.output:
        ElementTree.SubElement(element, "system-out").text = case.output
    return element


def _case_name(text: str) -> str:
    """A name that lists can show; its end tells tasks apart."""
    if len(text) <= _LONGEST_NAME:
        return text or "-"
    half = _LONGEST_NAME // 2
    return f"{text[:half]} … {text[-half:]}"
