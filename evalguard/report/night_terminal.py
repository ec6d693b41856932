"""A night as plain text: for a terminal, and as a mail of 72 columns with its subject."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from evalguard.core.gate_state import GateState
from evalguard.core.reports.findings import without_quotes
from evalguard.core.reports.night_report import (
    NightReport,
    PairNight,
    gravity,
)
from evalguard.report.terminal_page import next_lines, render_page
from evalguard.report.words.night_news import (
    change_point_error_text,
    night_metric_line,
    night_news,
    night_pair_line,
    night_subject,
    report_link,
)
from evalguard.report.words.plain_text import printable, wrap_text

_MAIL_WIDTH = 72
_MOST_NEWS, _MOST_PAIRS, _MOST_METRICS = 5, 4, 3
_STYLES: dict[GateState, str] = {
    "regressed": "bold red",
    "failed": "bold magenta",
    "undecided": "yellow",
    "passed": "green",
}


def night_mail(report: NightReport) -> str:
    """The summary as a mail: a line "Subject: ...", an empty one, and text of 72 columns."""
    report = without_quotes(report)
    body = render_page(_blocks(report, _MAIL_WIDTH, links=True), _MAIL_WIDTH, color=False)
    return f"Subject: {night_subject(report)}\n\n{body}\n"


def night_text(report: NightReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """The summary for a terminal; with ``verbose`` every pair and every note."""
    head = [Text(line, style="bold") for line in wrap_text(night_subject(report), width)]
    blocks = _blocks(report, width, links=False) if verbose else _first_screen(report, width)
    return render_page([head, *blocks], width, color=color)


def _first_screen(report: NightReport, width: int) -> Iterator[list[Text]]:
    """What is new, the gravest pairs, and a line about the rest."""
    told = night_news(report)
    lines = [line for text in told[:_MOST_NEWS] for line in _item_lines(text, width)]
    if len(told) > _MOST_NEWS:
        lines += _item_lines(f"and {len(told) - _MOST_NEWS} more that changed", width)
    yield lines
    pairs = sorted(report.pairs, key=_state_rank)
    grave = [pair for pair in pairs if pair.state != "passed"]
    for pair in grave[:_MOST_PAIRS]:
        yield list(_pair_lines(report, pair, width, links=False, most=_MOST_METRICS))
    rest = []
    if len(grave) > _MOST_PAIRS:
        rest.append(f"{len(grave) - _MOST_PAIRS} more pairs did not pass")
    if passed := len(pairs) - len(grave):
        noun = "pair" if passed == 1 else "pairs"
        rest.append(f"{passed} {noun} passed")
    if report.notes:
        rest.append(f"{len(report.notes)} note{'' if len(report.notes) == 1 else 's'}")
    ends = [*_item_lines(f"{'; '.join(rest)}.", width)] if rest else []
    shown = next((pair.run_folder for pair in grave if pair.run_folder), "")
    command = shlex.join(["evalguard", "report", shown])
    yield [
        *ends,
        *_foot_lines(report, width),
        *(next_lines("to see the gravest in full", command, width) if shown else ()),
        *_item_lines("More: summary.txt there, or the same command with -v", width),
    ]


def _blocks(report: NightReport, width: int, *, links: bool) -> Iterator[list[Text]]:
    yield [line for text in night_news(report) for line in _item_lines(text, width)]
    for pair in sorted(report.pairs, key=_state_rank):
        yield list(_pair_lines(report, pair, width, links=links))
    for note in report.notes:
        yield list(_item_lines(f"Note: {printable(note)}", width))
    if change_point_error_text(report):
        yield list(_item_lines(change_point_error_text(report), width))
    yield list(_foot_lines(report, width))


def _pair_lines(
    report: NightReport, pair: PairNight, width: int, *, links: bool, most: int | None = None
) -> Iterator[Text]:
    style = _STYLES[pair.state]
    for number, line in enumerate(
        wrap_text(f"{pair.state.upper()} {night_pair_line(pair)}", width)
    ):
        yield Text(line, style=style if number == 0 else "")
    told = [metric for metric in pair.metrics if metric.state != "passed" or metric.accepted]
    if most is not None:
        told.sort(key=gravity, reverse=True)
    for metric in told[:most]:
        yield from _item_lines(
            night_metric_line(metric, pair.margin), width, first="  ", rest="    "
        )
    if most is not None and len(told) > most:
        yield from _item_lines(
            f"and {len(told) - most} more metrics", width, first="  ", rest="    "
        )
    found = [f"Note: {one.line}" for one in pair.findings] if most is None else []
    for text in (*_cause_texts(pair), *found):
        yield from _item_lines(printable(text), width, first="  ", rest="  ")
    link = report_link(report, pair.run_folder)
    if links and link:
        yield Text(f"  {printable(link)}/")


def _cause_texts(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield f"hint: {pair.hint}"
    if pair.culprits:
        yield f"culprits: {', '.join(pair.culprits)}"
    elif pair.bisection:
        yield f"bisection: {pair.bisection}"


def _foot_lines(report: NightReport, width: int) -> Iterator[Text]:
    history = f", history {printable(report.history)}" if report.history else ""
    yield from _item_lines(
        f"Exit code {report.exit_code}. {printable(report.guard)}; night "
        f"{printable(report.folder)}{history}.",
        width,
    )


def _item_lines(text: str, width: int, *, first: str = "", rest: str = "") -> Iterator[Text]:
    for line in wrap_text(text, width, first=first, rest=rest):
        yield Text(line)


def _state_rank(pair: PairNight) -> int:
    return list(_STYLES).index(pair.state)
