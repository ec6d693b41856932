"""The runs of a history as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.core.history_night import NightMetric
from evalguard.core.reports.history_report import (
    HistoryListing,
    HistoryRun,
)
from evalguard.report.table import Table
from evalguard.report.terminal_page import wrap_prose
from evalguard.report.words.metric_labels import GRAVITY, STATE_STYLE, key_label
from evalguard.report.words.plain_text import fit_text, printable
from evalguard.report.words.rounding import format_count, format_drift

_RUN_HEADER = ("run", "time (UTC)", "gate", "sigma", "worst metric", "base vs candidate")
_WIDEST_NAME = 28
# Narrower than this, the day alone is shown, so that gate and sigma have room.
_NARROWEST_WITH_TIME = 60


def listing_blocks(listing: HistoryListing, width: int) -> Iterator[list[Text]]:
    """The table, under a line that says how many runs there are."""
    shown = len(listing.runs)
    part = "" if shown == listing.total else f", the last {format_count(shown)} of them"
    runs = "run" if listing.total == 1 else "runs"
    pairs = {kept.run.pair for kept in listing.runs}
    of = "" if len(pairs) != 1 else printable(" of {} vs {}".format(*next(iter(pairs))))
    yield wrap_prose(
        f"{printable(listing.file)}: {format_count(listing.total)} {runs}{of}{part}", width
    )
    if not listing.runs:
        return
    rows = [_RUN_HEADER, *(_run_cells(kept) for kept in listing.runs)]
    if len(pairs) == 1:
        rows = [row[:-1] for row in rows]
    if width < _NARROWEST_WITH_TIME:
        rows = [(number, time[:10], *others) for number, time, *others in rows]
    styles = ["bold", *(STATE_STYLE[kept.run.state] for kept in listing.runs)]
    yield Table(headings=rows[0], rows=rows[1:]).lines(width, styles)


def format_time(created: str) -> str:
    """Return a time to the minute: "2026-11-20 03:00"."""
    return printable(created[:16].replace("T", " "))


def _run_cells(kept: HistoryRun) -> tuple[str, ...]:
    run, worst = kept.run, _worst_metric(kept)
    label = "-" if worst is None else key_label(*worst.key)
    return (
        str(run.number),
        format_time(run.created),
        _run_state(kept),
        "-" if worst is None else format_drift(worst.drift, worst.drift_stderr, worst.unit),
        fit_text(label, _WIDEST_NAME),
        fit_text(printable(f"{run.base} vs {run.candidate}"), _WIDEST_NAME),
    )


def _run_state(kept: HistoryRun) -> str:
    accepted = sum(bool(metric.accepted) for metric in kept.metrics)
    return f"{kept.run.state}, {accepted} accepted" if accepted else kept.run.state


def _worst_metric(kept: HistoryRun) -> NightMetric | None:
    """The gated metric with the gravest outcome, and of those the largest sigma."""
    gated = [metric for metric in kept.metrics if metric.gated] or list(kept.metrics)
    return min(
        gated,
        key=lambda m: (GRAVITY.index(m.outcome), -(m.sigma if m.sigma is not None else 0.0)),
        default=None,
    )
