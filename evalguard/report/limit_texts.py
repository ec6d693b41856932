"""Absolute limits of the gate, in words."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.broken_documents import BROKEN_DOCUMENTS, broken_text
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import quotes_text
from evalguard.core.limits import LimitVerdict
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import format_percent


def limit_line(verdict: LimitVerdict) -> str:
    """Return one limit as a line: what was asked, what was found, what that means."""
    return f"{verdict.state} · {limit_found(verdict)}"


def limit_found(verdict: LimitVerdict) -> str:
    """The same without its state."""
    if verdict.metric == BROKEN_DOCUMENTS:
        return printable(broken_text(verdict))
    measured = "" if verdict.value is None else f" {_value_text(verdict)}{_interval_text(verdict)}:"
    return f"{limit_label(verdict)} {_allowed_text(verdict)}:{measured} {_reason_text(verdict)}"


def limit_tally(verdicts: Sequence[LimitVerdict]) -> str:
    """Return "; limits: 1 regressed, 2 passed", "" where there are none."""
    states = [verdict.state for verdict in verdicts]
    order = ("failed", "regressed", "undecided", "passed")
    counts = [f"{states.count(state)} {state}" for state in order if state in states]
    return f"; limits: {', '.join(counts)}" if counts else ""


def limit_figures_text(verdicts: Sequence[LimitVerdict]) -> str:
    """Return what is left of each figure with a limit: "; kl_mean on a: 3e-05 (at most 0.001)"."""
    known = [v for v in verdicts if v.value is not None and v.metric != BROKEN_DOCUMENTS]
    return "".join(
        f"; {limit_label(verdict)}: {_value_text(verdict)} ({_allowed_text(verdict)})"
        for verdict in known
    )


def decisive_limit(report: CompareReport) -> LimitVerdict | None:
    """Return the limit that brought about the gate's state, if no metric did."""
    gate = report.gate
    by_metrics = {"regressed": gate.regressed, "failed": gate.failed, "undecided": gate.undecided}
    if by_metrics.get(gate.state, ("passed",)):
        return None
    return next((verdict for verdict in gate.limits if verdict.state == gate.state), None)


def limit_statement(report: CompareReport, verdict: LimitVerdict) -> str:
    """Say what a limit means for the candidate; without a full stop."""
    candidate = printable(report.candidate.name)
    if verdict.metric == BROKEN_DOCUMENTS:
        verb = "fails on" if verdict.state == "regressed" else "cannot be judged on"
        return f"{candidate} {verb} {printable(broken_text(verdict))}"
    label, allowed = limit_label(verdict), f"{_allowed_text(verdict)} is allowed"
    if verdict.state == "failed":
        return f"Whether {candidate} keeps the limit of {label} is {printable(verdict.reason)}"
    measured = f"{_value_text(verdict)}{_interval_phrase(verdict, report)}"
    if verdict.state == "undecided":
        return f"Whether {candidate} keeps the limit of {label} is not sure: {measured}; {allowed}"
    return f"{candidate} breaks the limit of {label}: {measured}; {allowed}"


def limit_label(verdict: LimitVerdict) -> str:
    """Return the figure and what it was measured on: "kl_mean on lastword"."""
    if verdict.metric == BROKEN_DOCUMENTS:
        return "broken documents" + printable(f" of {verdict.task}" if verdict.task else "")
    task = printable(f"{verdict.task} {verdict.of}".strip())
    if verdict.filter not in ("", "none"):
        task += printable(f" ({verdict.filter})")
    metric = printable(verdict.metric)
    return f"{metric} on {task}" if task else metric


def broken_lines(report: CompareReport, verdict: LimitVerdict) -> tuple[str, ...]:
    """Return what both models gave in each broken document; () of any other limit."""
    if verdict.metric != BROKEN_DOCUMENTS:
        return ()
    return tuple(
        printable(f"{document.task} {document.line}{quotes_text(document.quotes)}")
        for document in report.broken_documents
    )


def _allowed_text(verdict: LimitVerdict) -> str:
    bound = f"{verdict.limit:.6g}"
    if verdict.of_figure:
        bound = f"{100.0 * verdict.limit:.6g}%"
    return f"{'at most' if verdict.kind == 'upper' else 'at least'} {bound}"


def _value_text(verdict: LimitVerdict) -> str:
    least = "at least " if verdict.at_least else ""
    return f"{least}{_format_beside_limit(verdict, verdict.value)}"


def _format_beside_limit(verdict: LimitVerdict, value: float | None) -> str:
    """A number with the digits that the interval supports, more beside the limit."""
    if verdict.of_figure and value is not None:
        return f"{100.0 * value:.3g}%"
    low, high = verdict.interval or (0.0, 0.0)
    text = rounding.round_to_error(value, (high - low) / 4.0 if high < float("inf") else None)
    if value is None or float(text) != verdict.limit or value == verdict.limit:
        return text
    return f"{value:.6g}"


def _interval_text(verdict: LimitVerdict) -> str:
    if verdict.interval is None:
        return ""
    low, high = (_format_beside_limit(verdict, end) for end in verdict.interval)
    return f" [from {low}]" if verdict.at_least else f" [{low}, {high}]"


def _interval_phrase(verdict: LimitVerdict, report: CompareReport) -> str:
    if verdict.interval is None:
        return ""
    low, high = (_format_beside_limit(verdict, end) for end in verdict.interval)
    if verdict.at_least:
        return f" ({format_percent(report.gate.confidence)} interval from {low})"
    return f" ({format_percent(report.gate.confidence)} interval {low} to {high})"


def _reason_text(verdict: LimitVerdict) -> str:
    return printable(verdict.reason)
