"""Absolute limits of the gate: for the JSON document and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalguard.compare_report import CompareReport
from evalguard.limits import LimitVerdict
from evalguard.report import rounding
from evalguard.report.plain_text import printable
from evalguard.report.wording import percent


def limit_document(verdict: LimitVerdict) -> dict[str, Any]:
    """Return a limit's verdict as JSON values, but for infinite numbers."""
    return {
        "metric": verdict.metric,
        "kind": verdict.kind,
        "limit": verdict.limit,
        "task": verdict.task,
        "filter": verdict.filter,
        "of": verdict.of,
        "value": verdict.value,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "bounds": None if verdict.bounds is None else list(verdict.bounds),
        "state": verdict.state,
        "certain": verdict.certain,
        "reason": verdict.reason,
    }


def limit_line(verdict: LimitVerdict) -> str:
    """Return one limit as a line: what was asked, what was found, what that means."""
    return f"{verdict.state} · {limit_found(verdict)}"


def limit_found(verdict: LimitVerdict) -> str:
    """The same without its state."""
    found = "" if verdict.value is None else f" {_number(verdict)}{_interval(verdict)}:"
    return f"{limit_label(verdict)} {_asked(verdict)}:{found} {_reason(verdict)}"


def limit_tally(verdicts: Sequence[LimitVerdict]) -> str:
    """Return "; limits: 1 regressed, 2 passed", "" where there are none."""
    states = [verdict.state for verdict in verdicts]
    order = ("failed", "regressed", "undecided", "passed")
    counts = [f"{states.count(state)} {state}" for state in order if state in states]
    return f"; limits: {', '.join(counts)}" if counts else ""


def limits_kept(verdicts: Sequence[LimitVerdict]) -> str:
    """Return what is left of each figure with a limit: "; kl_mean on a: 3e-05 (at most 0.001)"."""
    known = [one for one in verdicts if one.value is not None]
    return "".join(f"; {limit_label(one)}: {_number(one)} ({_asked(one)})" for one in known)


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
    label, allowed = limit_label(verdict), f"{_asked(verdict)} is allowed"
    if verdict.state == "failed":
        why = _reason(verdict).removeprefix("not known: ")
        return f"Whether {candidate} keeps the limit of {label} is not known: {why}"
    found = f"{_number(verdict)}{_words(verdict, report)}"
    if verdict.state == "undecided":
        return f"Whether {candidate} keeps the limit of {label} is not sure: {found}; {allowed}"
    return f"{candidate} breaks the limit of {label}: {found}; {allowed}"


def limit_label(verdict: LimitVerdict) -> str:
    """Return the figure and what it was measured on: "kl_mean on lastword"."""
    task = printable(f"{verdict.task} {verdict.of}".strip())
    if verdict.filter not in ("", "none"):
        task += printable(f" ({verdict.filter})")
    metric = printable(verdict.metric)
    return f"{metric} on {task}" if task else metric


def _asked(verdict: LimitVerdict) -> str:
    return f"{'at most' if verdict.kind == 'upper' else 'at least'} {verdict.limit:.6g}"


def _number(verdict: LimitVerdict) -> str:
    return _rounded(verdict, verdict.value)


def _rounded(verdict: LimitVerdict, value: float | None) -> str:
    """A number with the digits that the interval supports, more beside the limit."""
    low, high = verdict.interval or (0.0, 0.0)
    text = rounding.rounded(value, (high - low) / 4.0 if high < float("inf") else None)
    if value is None or float(text) != verdict.limit or value == verdict.limit:
        return text
    return f"{value:.6g}"


def _interval(verdict: LimitVerdict) -> str:
    if verdict.interval is None:
        return ""
    low, high = (_rounded(verdict, end) for end in verdict.interval)
    return f" [{low}, {high}]"


def _words(verdict: LimitVerdict, report: CompareReport) -> str:
    if verdict.interval is None:
        return ""
    low, high = (_rounded(verdict, end) for end in verdict.interval)
    return f" ({percent(report.gate.confidence)} interval {low} to {high})"


def _reason(verdict: LimitVerdict) -> str:
    return printable(verdict.reason)
