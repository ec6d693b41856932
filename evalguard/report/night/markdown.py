"""A night in Markdown: the summary of a scheduled job, a comment."""

from __future__ import annotations

from collections.abc import Iterator

from evalguard.escaping import inline
from evalguard.gate_reason import GateState
from evalguard.night_report import NightReport, PairNight
from evalguard.report.night.document import report_link
from evalguard.report.night.words import key_text, name, news, rate, sigma_text, subject
from evalguard.report.plain_text import printable

_ICON: dict[GateState, str] = {"passed": "✅", "regressed": "❌", "failed": "💥", "undecided": "⚠️"}
_MOST_ROWS = 500


def night_markdown(report: NightReport) -> str:
    """Return the page; names and texts of models stay text."""
    parts = [f"### {inline(subject(report), 300)}"]
    parts.append("\n".join(f"- {inline(line, 500)}" for line in news(report)))
    parts.append("\n".join(_table(report)))
    if report.notes:
        parts.append("\n".join(f"- {inline(printable(note), 500)}" for note in report.notes))
    if rate(report):
        parts.append(inline(rate(report), 500))
    parts.append(f"Exit code {report.exit_code}; {inline(printable(report.guard), 200)}.")
    return "\n\n".join(parts) + "\n"


def _table(report: NightReport) -> Iterator[str]:
    yield "| | pair | gate | worst metric | sigma | culprits | run |"
    yield "|---|---|---|---|---|---|---|"
    for pair in report.pairs[:_MOST_ROWS]:
        yield f"| {' | '.join(_cells(report, pair))} |"
    if len(report.pairs) > _MOST_ROWS:
        yield f"| | _{len(report.pairs) - _MOST_ROWS} more pairs_ | | | | | |"


def _cells(report: NightReport, pair: PairNight) -> Iterator[str]:
    yield _ICON[pair.state]
    yield inline(printable(name(pair)))
    yield inline(printable(pair.reason), 300)
    worst = pair.worst
    if worst is None:
        yield from ("", "")
    else:
        sigma, low, high = sigma_text(worst, pair.margin)
        yield inline(printable(key_text(worst.key)))
        yield sigma if worst.low is None else f"{sigma} [{low}, {high}]"
    yield inline(printable(", ".join(pair.culprits) or pair.bisection), 300)
    yield inline(printable(report_link(report, pair.run_folder)), 200)
