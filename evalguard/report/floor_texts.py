"""The sentences of a floor, of its own report and beside a comparison's drift."""

from __future__ import annotations

import math

from evalguard.core.compare_report import CompareReport
from evalguard.core.noise_floor import Floor
from evalguard.page import rounding
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import decisive_comparison

_MOST_TIMES = 1000


def floor_line(report: CompareReport) -> str:
    """Say how far the drift that a report is about lies above the floor; "" without a floor."""
    about = decisive_comparison(report)
    floor = about.floor if about is not None else None
    if about is None or floor is None or about.sigma is None:
        return ""
    statement = f"{_floor_statement(about.sigma, floor)} ({_floor_conditions(about.n_used, floor)})"
    return f"Floor: {statement}{_kl_floor_clause(report, about.task)}."


def _floor_statement(sigma: float, floor: Floor) -> str:
    if floor.sigma == 0.0:
        if sigma == 0.0:
            return "no drift, as an unchanged model shows here"
        return "a drift, where an unchanged model shows none here"
    if floor.within:
        return "the drift is within what an unchanged model shows here"
    times = "far more than" if floor.times is None else f"{_times_text(floor.times)} times"
    statement = f"the drift is {times} what an unchanged model shows here"
    if floor.within_upper:
        statement += (
            f", but that is known only roughly: it may be "
            f"{format_drift_size(floor.sigma_upper)} sigma"
        )
    return statement


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
