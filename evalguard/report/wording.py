"""The words that all reports share: labels, outcomes in order of gravity, colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison, Outcome
from evalguard.gate_reason import GateState
from evalguard.report import rounding
from evalguard.report.plain_text import printable
from evalguard.report.subtasks import concerned, of_subtasks
from evalguard.verdict import Margin

_MOST_MARGINS = 8
# Gravest first.
GRAVITY: tuple[Outcome, ...] = (
    "failed",
    "regressed",
    "undecided",
    "degraded",
    "improved",
    "unchanged",
)
OUTCOME_STYLE: dict[Outcome, str] = {
    "failed": "bold magenta",
    "regressed": "bold red",
    "undecided": "yellow",
    "degraded": "yellow",
    "improved": "green",
    "unchanged": "green",
}
STATE_STYLE: dict[GateState, str] = {
    "failed": OUTCOME_STYLE["failed"],
    "regressed": OUTCOME_STYLE["regressed"],
    "undecided": "bold yellow",
    "passed": "bold green",
}


def metric_label(comparison: Comparison) -> str:
    """Return "perplexity", or "exact_match (flexible-extract)" where a filter has a name."""
    if comparison.filter in ("", "none"):
        return printable(comparison.metric)
    return printable(f"{comparison.metric} ({comparison.filter})")


def full_label(comparison: Comparison) -> str:
    """Return task and metric: "lastword perplexity"."""
    return f"{printable(comparison.task)} {metric_label(comparison)}"


def subject(report: CompareReport) -> Comparison | None:
    """Return the comparison that the report is about.

    One of those that brought about the gate's state (where it passed: any), and among them the
    gravest outcome, then the largest sigma. None if nothing was compared.
    """
    gate = report.gate
    decisive = {"regressed": gate.regressed, "failed": gate.failed, "undecided": gate.undecided}
    keys = decisive.get(gate.state, ())
    chosen = [c for c in report.comparisons if c.key in keys]
    return min(
        chosen or concerned(report),
        key=lambda c: (GRAVITY.index(c.outcome), -_badness(c)),
        default=None,
    )


def tally(comparisons: Sequence[Comparison]) -> str:
    """Return "1 regressed, 2 unchanged", gravest first."""
    counts = {outcome: sum(c.outcome == outcome for c in comparisons) for outcome in GRAVITY}
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)


def tallies(report: CompareReport) -> str:
    """Count outcomes, those that the gate does not judge apart."""
    about = concerned(report)
    text = tally(about) or "no metrics"
    told = {id(comparison) for comparison in about}
    others = [c for c in report.comparisons if id(c) not in told]
    below = of_subtasks(report)
    of = "of subtasks, not gated" if all(c.task in below for c in others) else "not gated"
    return f"{text}; {of}: {tally(others)}" if others else text


def beside_the_gate(report: CompareReport) -> str:
    """Say what is worse and not judged: "not gated: acc +2.70 sigma, and 3 more"; else ""."""
    below, gated = of_subtasks(report), report.gate.gated
    worse = [
        c for c in report.comparisons
        if c.outcome == "regressed" and c.key not in gated and c.task not in below
    ]  # fmt: skip
    if not worse or not gated:
        return ""
    first = max(worse, key=_badness)
    size, _, _ = rounding.sigma_with_interval(
        first.sigma, first.sigma_interval, margin=margin_of(report, first)
    )
    more = f", and {len(worse) - 1} more" if len(worse) > 1 else ""
    return f"not gated: {full_label(first)} {size} sigma{more}"


def outcome_words(report: CompareReport, comparison: Comparison) -> str:
    """Return the outcome, with "not gated" where it decides nothing and no note says so."""
    if comparison.key in report.gate.gated or not report.gate.gated:
        return comparison.outcome
    below = comparison.task in of_subtasks(report)
    return comparison.outcome if below else f"{comparison.outcome}, not gated"


def percent(confidence: float) -> str:
    """Return a confidence as "95%" or "99.9%"."""
    return f"{100 * confidence:.6g}%"


def margin_of(report: CompareReport, comparison: Comparison) -> float:
    """Return the margin of a metric in sigma; the gate's where a stored result has none."""
    return report.gate.margin if comparison.margin is None else comparison.margin


def margin_words(report: CompareReport, comparison: Comparison, *, unit: str = "") -> str:
    """Return a metric's margin: "1.0", "1pp (0.93 sigma)"; ``unit`` follows a number of sigmas."""
    given = comparison.margin_text
    if not given or given.endswith("sigma"):
        return f"{margin_text(margin_of(report, comparison))}{unit}"
    return f"{printable(given)} ({margin_of(report, comparison):.3g} sigma)"


def drift_in_unit(comparison: Comparison) -> str:
    """Return the drift in points or percent where the margin is: "+4.6% [4.3, 5.0]"; else ""."""
    given, margin, ends = comparison.margin_text, comparison.margin, comparison.sigma_interval
    if not given or given.endswith("sigma") or not margin or comparison.bit_identical:
        return ""
    if comparison.sigma is None or ends is None or not all(map(math.isfinite, ends)):
        return ""
    allowed = 100.0 * Margin.parse(given).value
    size, low, high = rounding.sigma_with_interval(
        comparison.sigma * allowed / margin,
        (ends[0] * allowed / margin, ends[1] * allowed / margin),
        margin=allowed,
    )
    return f"{size}{'pp' if given.endswith('pp') else '%'} [{low}, {high}]"


def margin_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a paragraph with the drifts whose margins are in points or percent, in these."""
    held = [c for c in comparisons if drift_in_unit(c)]
    if not held:
        return []
    told = "; ".join(
        f"{full_label(c)} {drift_in_unit(c)}, margin {printable(c.margin_text)} "
        f"({c.margin:.3g} sigma)"
        for c in held[:_MOST_MARGINS]
    )
    more = len(held) - _MOST_MARGINS
    return [f"In the margin's unit: {told}{f'; and {more} more' if more > 0 else ''}."]


def margin_text(margin: float) -> str:
    """Return the gate's margin with at least one decimal: "1.0", "0.25"."""
    text = f"{margin:.6g}"
    return text if "." in text or "e" in text or "n" in text else f"{text}.0"


def _badness(comparison: Comparison) -> float:
    sigma = comparison.sigma
    return float("-inf") if sigma is None or sigma != sigma else sigma
