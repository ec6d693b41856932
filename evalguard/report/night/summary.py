"""A night as plain text: for a terminal, and as a mail of 72 columns with its subject."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from evalguard.gate_reason import GateState
from evalguard.night_report import NightReport, PairNight
from evalguard.report.night.document import report_link
from evalguard.report.night.words import metric_line, news, pair_line, rate, subject
from evalguard.report.page import page
from evalguard.report.plain_text import printable, wrapped

_MAIL_WIDTH = 72
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


def night_text(report: NightReport, *, width: int, color: bool) -> str:
    """The summary for a terminal."""
    head = [Text(line, style="bold") for line in wrapped(subject(report), width)]
    return page([head, *_blocks(report, width, links=False)], width, color=color)


def _blocks(report: NightReport, width: int, *, links: bool) -> Iterator[list[Text]]:
    yield [line for text in news(report) for line in _item(text, width)]
    for pair in sorted(report.pairs, key=_gravest_first):
        yield list(_pair(report, pair, width, links=links))
    for note in report.notes:
        yield list(_item(f"Note: {printable(note)}", width))
    if rate(report):
        yield list(_item(rate(report), width))
    yield list(_foot(report, width))


def _pair(report: NightReport, pair: PairNight, width: int, *, links: bool) -> Iterator[Text]:
    style = _STYLES[pair.state]
    for number, line in enumerate(wrapped(f"{pair.state.upper()} {pair_line(pair)}", width)):
        yield Text(line, style=style if number == 0 else "")
    for metric in pair.metrics:
        if metric.state != "passed" or metric.accepted:
            yield from _item(metric_line(metric, pair.margin), width, first="  ", rest="    ")
    for text in _beside(pair):
        yield from _item(printable(text), width, first="  ", rest="  ")
    link = report_link(report, pair.run_folder)
    if links and link:
        yield Text(f"  {printable(link)}/")


def _beside(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield f"hint: {pair.hint}"
    if pair.culprits:
        yield f"guilty: {', '.join(pair.culprits)}"
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
