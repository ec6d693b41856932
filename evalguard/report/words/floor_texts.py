"""The sentences of a floor, of its own report and beside a comparison's drift."""

from __future__ import annotations

import math

from evalguard.core.noise_floor import Floor, MetricFloor, Shift
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.floor_report import FloorReport
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import (
    decisive_comparison,
    is_in_sigma,
    margin_text,
)
from evalguard.report.words.plain_text import printable

_MOST_TIMES = 1000


def floor_metric_name(of: MetricFloor | Shift) -> str:
    """Return "sw_word perplexity", with the filter where it has a name."""
    name = f"{of.task} {of.metric}"
    return printable(name if of.filter in ("", "none") else f"{name} ({of.filter})")


def floor_sentence(report: FloorReport) -> str:
    """Say what a measured floor means, by its largest number."""
    model = printable(report.model.name)
    number = len(report.variations)
    under = f"under all {number} variations" if number > 1 else "under the one variation"
    others = max(report.floors, key=lambda floor: floor.other_answers or 0)
    if all(floor.bit_identical for floor in report.floors) and others.other_answers:
        return (
            f"{model} gives every document the same score {under}, and other answers in up to "
            f"{others.other_answers} of {others.n} ({floor_metric_name(others)}): an unchanged "
            "model shows no drift here, and does not repeat its answers."
        )
    if all(floor.bit_identical for floor in report.floors):
        return (
            f"{model} gives every document the same score, to the last bit, {under}: an unchanged "
            "model shows no drift here."
        )
    largest = max(report.floors, key=lambda floor: (floor.sigma, floor.sigma_upper))
    said = (
        f"Unchanged, {model} shows a drift of up to {format_drift_size(largest.sigma)} "
        "standard errors "
        f"({floor_metric_name(largest)}, {printable(largest.variation)}; intervals reach "
        f"{format_drift_size(largest.sigma_upper)}): a drift that is no larger says nothing "
        "about a conversion."
    )
    said += _kl_clause(report)
    above = [floor for floor in report.floors if floor.sigma > _allowed_margin(floor, report)]
    if above:
        one = max(
            above, key=lambda floor: floor.sigma / max(_allowed_margin(floor, report), 1e-300)
        )
        what = (
            "That"
            if one is largest
            else f"{format_drift_size(one.sigma)} on {floor_metric_name(one)}"
        )
        said += (
            f" {what} is above the margin of {_margin_phrase(one, report)}: a gate would fail an "
        )
        said += "unchanged model."
    return said


def _allowed_margin(floor: MetricFloor, report: FloorReport) -> float:
    """The margin of a metric; infinite where a gate would not judge it."""
    if not floor.margin_text:
        return report.margin
    return math.inf if floor.margin is None else floor.margin


def _margin_phrase(floor: MetricFloor, report: FloorReport) -> str:
    allowed = _allowed_margin(floor, report)
    if is_in_sigma(floor.margin_text):
        return margin_text(allowed)
    return f"{printable(floor.margin_text)} ({allowed:.3g} sigma)"


def _kl_clause(report: FloorReport) -> str:
    if not report.distribution_floors:
        return ""
    largest = max(report.distribution_floors, key=lambda floor: floor.kl)
    return (
        f" Its next-token distributions move by a KL of up to {format_nats(largest.kl)} nats a "
        "token "
        f"({printable(largest.task)}, {printable(largest.variation)})."
    )


def floor_line(report: CompareReport) -> str:
    """Say how far the drift that a report is about lies above the floor; "" without a floor."""
    about = decisive_comparison(report)
    floor = about.floor if about is not None else None
    if about is None or floor is None or about.sigma is None:
        return ""
    said = f"{_floor_statement(about.sigma, floor)} ({_floor_conditions(about.n_used, floor)})"
    return f"Floor: {said}{_kl_floor_clause(report, about.task)}."


def _floor_statement(sigma: float, floor: Floor) -> str:
    if floor.sigma == 0.0:
        if sigma == 0.0:
            return "no drift, as an unchanged model shows here"
        return "a drift, where an unchanged model shows none here"
    if floor.within:
        return "the drift is within what an unchanged model shows here"
    times = "far more than" if floor.times is None else f"{_times_text(floor.times)} times"
    said = f"the drift is {times} what an unchanged model shows here"
    if floor.within_upper:
        said += (
            f", but that is known only roughly: it may be "
            f"{format_drift_size(floor.sigma_upper)} sigma"
        )
    return said


def _kl_floor_clause(report: CompareReport, task: str) -> str:
    """What a task's mean KL is beside its floor; "" where either is not known."""
    distribution = next((d for d in report.distributions if d.task == task), None)
    floor = None if distribution is None else distribution.floor
    if distribution is None or floor is None or distribution.kl.value is None:
        return ""
    if floor.kl == 0.0:
        none = distribution.kl.value == 0.0
        return "; there is no KL either" if none else "; the KL of an unchanged model is 0"
    where = printable(floor.variation)
    if floor.within:
        return f"; the mean KL is within that of an unchanged model ({where})"
    times = "far more than" if floor.times is None else f"{_times_text(floor.times)} times"
    roughly = ", known only roughly" if floor.within_upper else ""
    return f"; the mean KL is {times} that of an unchanged model ({where}{roughly})"


def _floor_conditions(n: int, floor: Floor) -> str:
    parts = [printable(floor.variation)] if floor.sigma else ["under every variation"]
    if floor.n != n:
        parts.append(f"measured on {rounding.format_count(floor.n)} documents")
    return ", ".join(parts)


def _times_text(times: float) -> str:
    if times > _MOST_TIMES:
        return f"more than {rounding.format_count(_MOST_TIMES)}"
    return f"{times:.2g}" if times < 100 else f"{times:.0f}"


def format_nats(kl: float) -> str:
    """Return a divergence in two significant digits: "0.013", "2.1e-07"."""
    return f"{kl:.2g}"


def format_drift_size(sigma: float) -> str:
    """Return a size of drift in two significant digits: "0.013", "2e-07", "41"."""
    if not math.isfinite(sigma):
        return "infinitely many"
    return f"{sigma:.2g}" if sigma < 10 else rounding.format_count(round(sigma))
