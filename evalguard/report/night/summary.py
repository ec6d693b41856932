"""A night as plain text: for a terminal, and as a mail of 72 columns with its subject."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.text import Text

from evalguard.gate_reason import GateState
from evalguard.night_report import NightReport, PairNight, gravity
from evalguard.report.night.document import report_link
from evalguard.report.night.words import metric_line, news, pair_line, rate, subject
from evalguard.report.page import command_lines, page
from evalguard.report.plain_text import printable, wrapped

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
    body = page(_blocks(report, _MAIL_WIDTH, links=True), _MAIL_WIDTH, color=False)
    return f"Subject: {subject(report)}\n\n{body}\n"


def night_text(report: NightReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """The summary for a terminal; with ``verbose`` every pair and every note."""
    head = [Text(line, style="bold") for line in wrapped(subject(report), width)]
    blocks = _blocks(report, width, links=False) if verbose else _first_screen(report, width)
    return page([head, *blocks], width, color=color)


def _first_screen(report: NightReport, width: int) -> Iterator[list[Text]]:
    """What is new, the gravest pairs, and a line about the rest."""
    told = news(report)
    lines = [line for text in told[:_MOST_NEWS] for line in _item(text, width)]
    if len(told) > _MOST_NEWS:
        lines += _item(f"and {len(told) - _MOST_NEWS} more that changed", width)
    yield lines
    pairs = sorted(report.pairs, key=_gravest_first)
    grave = [pair for pair in pairs if pair.state != "passed"]
    for pair in grave[:_MOST_PAIRS]:
        yield list(_pair(report, pair, width, links=False, most=_MOST_METRICS))
    rest = []
    if len(grave) > _MOST_PAIRS:
        rest.append(f"{len(grave) - _MOST_PAIRS} more pairs did not pass")
    if passed := len(pairs) - len(grave):
        noun = "pair" if passed == 1 else "pairs"
        rest.append(f"{passed} {noun} passed")
    if report.notes:
        rest.append(f"{len(report.notes)} note{'' if len(report.notes) == 1 else 's'}")
    ends = [*_item(f"{'; '.join(rest)}.", width)] if rest else []
    shown = next((pair.run_folder for pair in grave if pair.run_folder), "")
    step = command_lines(shlex.join(["evalguard", "report", shown]), width) if shown else []
    if step:
        step = [Text("Next, to see the gravest in full:", style="bold"), *step]
    yield [*ends, *_foot(report, width), *step, *_item("More: summary.txt there, or -v", width)]


def _blocks(report: NightReport, width: int, *, links: bool) -> Iterator[list[Text]]:
    yield [line for text in news(report) for line in _item(text, width)]
    for pair in sorted(report.pairs, key=_gravest_first):
        yield list(_pair(report, pair, width, links=links))
    for note in report.notes:
        yield list(_item(f"Note: {printable(note)}", width))
    if rate(report):
        yield list(_item(rate(report), width))
    yield list(_foot(report, width))


def _pair(
    report: NightReport, pair: PairNight, width: int, *, links: bool, most: int | None = None
) -> Iterator[Text]:
    style = _STYLES[pair.state]
    for number, line in enumerate(wrapped(f"{pair.state.upper()} {pair_line(pair)}", width)):
        yield Text(line, style=style if number == 0 else "")
    told = [metric for metric in pair.metrics if metric.state != "passed" or metric.accepted]
    if most is not None:
        told.sort(key=gravity, reverse=True)
    for metric in told[:most]:
        yield from _item(metric_line(metric, pair.margin), width, first="  ", rest="    ")
    if most is not None and len(told) > most:
        yield from _item(f"and {len(told) - most} more metrics", width, first="  ", rest="    ")
    for text in _beside(pair):
        yield from _item(printable(text), width, first="  ", rest="  ")
    link = report_link(report, pair.run_folder)
    if links and link:
        yield Text(f"  {printable(link)}/")


def _beside(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield f"hint: {pair.hint}"
    if pair.culprits:
        yield f"culprits: {', '.join(pair.culprits)}"
    elif pair.bisection:
        yield f"bisection: {pair.bisection}"


def _foot(report: NightReport, width: int) -> Iterator[Text]:
    history = f", history {printable(report.history)}" if report.history else ""
    yield from _item(
        f"Exit code {report.exit_code}. {printable(report.guard)}; night "
        f"{printable(report.folder)}{history}.",
        width,
    )


def _item(text: str, width: int, *, first: str = "", rest: str = "") -> Iterator[Text]:
    for line in wrapped(text, width, first=first, rest=rest):
        yield Text(line)


def _gravest_first(pair: PairNight) -> int:
    return list(_STYLES).index(pair.state)
