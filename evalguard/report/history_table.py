"""The runs of a history as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.history.night import NightMetric
from evalguard.history.report import HistoryListing, KeptRun
from evalguard.report.columns import column_widths, row_text
from evalguard.report.page import prose
from evalguard.report.plain_text import fitted, printable
from evalguard.report.rounding import count, with_stderr
from evalguard.report.wording import GRAVITY, STATE_STYLE

_HEAD = ("run", "time (UTC)", "gate", "sigma", "worst metric", "base vs candidate")
_WIDEST = 28
# Narrower than this, the day alone is shown, so that gate and sigma have room.
_DAYS_ONLY = 60


def listing_blocks(listing: HistoryListing, width: int) -> Iterator[list[Text]]:
    """The table, under a line that says how many runs there are."""
    shown = len(listing.runs)
    part = "" if shown == listing.total else f", the last {count(shown)} of them"
    runs = "run" if listing.total == 1 else "runs"
    pairs = {kept.run.pair for kept in listing.runs}
    of = "" if len(pairs) != 1 else printable(" of {} vs {}".format(*next(iter(pairs))))
    yield prose(f"{printable(listing.file)}: {count(listing.total)} {runs}{of}{part}", width)
    if not listing.runs:
        return
    rows = [_HEAD, *(_row(kept) for kept in listing.runs)]
    if len(pairs) == 1:
        rows = [row[:-1] for row in rows]
    if width < _DAYS_ONLY:
        rows = [(number, time[:10], *others) for number, time, *others in rows]
    widths = column_widths(rows, width)
    styles = ["bold", *(STATE_STYLE[kept.run.state] for kept in listing.runs)]
    yield [row_text(row, widths, width, style=s) for row, s in zip(rows, styles, strict=True)]


def when(created: str) -> str:
    """Return a time to the minute: "2026-11-20 03:00"."""
    return printable(created[:16].replace("T", " "))


def key_label(task: str, filter_name: str, metric: str) -> str:
    """Return "lastword perplexity", with the filter where it has a name."""
    named = "" if filter_name in ("", "none") else f" ({filter_name})"
    return printable(f"{task} {metric}{named}")


def _row(kept: KeptRun) -> tuple[str, ...]:
    run, worst = kept.run, _worst(kept)
    label = "-" if worst is None else key_label(*worst.key)
    return (
        str(run.number),
        when(run.created),
        _state(kept),
        "-" if worst is None else with_stderr(worst.sigma, worst.stderr),
        fitted(label, _WIDEST),
        fitted(printable(f"{run.base} vs {run.candidate}"), _WIDEST),
    )


def _state(kept: KeptRun) -> str:
    accepted = sum(bool(metric.accepted) for metric in kept.metrics)
    return f"{kept.run.state}, {accepted} accepted" if accepted else kept.run.state


def _worst(kept: KeptRun) -> NightMetric | None:
    """The gated metric with the gravest outcome, and of those the largest sigma."""
    gated = [metric for metric in kept.metrics if metric.gated] or list(kept.metrics)
    return min(
        gated,
        key=lambda m: (GRAVITY.index(m.outcome), -(m.sigma if m.sigma is not None else 0.0)),
        default=None,
    )
