"""Flips between two nights, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from evalguard.core.reports.broken_on_nights import BrokenDocuments
from evalguard.core.reports.document_flips import DocumentFlips
from evalguard.core.reports.history_report import (
    FlipReport,
    MetricFlips,
)
from evalguard.report.history_runs import format_time
from evalguard.report.terminal_page import wrap_prose
from evalguard.report.words.metric_labels import key_label
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

_MOST_DOCUMENTS = 12


def flip_blocks(report: FlipReport, width: int) -> Iterator[list[Text]]:
    """One block per metric, under a line that names the two nights."""
    first, second = report.first, report.second
    yield wrap_prose(
        f"{printable(second.candidate)} against {printable(second.base)}: run {first.number} "
        f"({format_time(first.created)}) -> run {second.number} ({format_time(second.created)})",
        width,
    )
    for metric in report.metrics:
        yield list(_metric_flip_lines(metric, report, width))


def _metric_flip_lines(found: MetricFlips, report: FlipReport, width: int) -> Iterator[Text]:
    yield Text(key_label(*found.key), style="bold")
    if found.flips is None or found.broken is None:
        yield from wrap_prose(printable(found.reason), width)
        return
    for line in _flip_sentences(found.flips):
        yield from wrap_prose(line, width)
    for line in _broken_sentences(found.broken, report):
        yield from wrap_prose(line, width)


def _flip_sentences(flips: DocumentFlips) -> Iterator[str]:
    others = [
        f"{format_count(number)} only in the {which}"
        for which, number in (("first", flips.only_first), ("second", flips.only_second))
        if number
    ]
    share = "".join(f", {text}" for text in others)
    yield (
        f"{format_count(flips.shared)} documents{share}; {format_count(flips.same)} scored the "
        f"same to the bit"
    )
    if flips.lost is not None and flips.won is not None:
        yield f"lost {_document_list(flips.lost)}"
        yield f"won {_document_list(flips.won)}"
    elif flips.moved:
        told = [f"{moved.doc_id} ({-moved.worse:+.2g})" for moved in flips.moved]
        yield f"moved most: {', '.join(told)}; below 0 is worse"
    if flips.base_moved:
        yield f"the base scores {format_count(flips.base_moved)} of them otherwise, too"


def _broken_sentences(broken: BrokenDocuments, report: FlipReport) -> Iterator[str]:
    if not broken.total and not broken.repaired:
        return
    parts = [
        f"{format_count(len(broken.still))} still",
        f"{format_count(len(broken.new))} for the first time",
        f"{format_count(len(broken.again))} again",
    ]
    yield (
        f"broken in run {report.second.number}: {format_count(broken.total)} ({', '.join(parts)}); "
        f"{format_count(len(broken.repaired))} of the night before are repaired"
    )
    if broken.again:
        yield f"broken again {_document_list(broken.again)}"
    alike = broken.alike
    if alike is not None:
        fresh = len(broken.new) + len(broken.again)
        yield (
            f"{format_count(alike.again)} of the {format_count(fresh)} that broke were broken "
            f"in run {alike.run} "
            f"({format_time(report.nights.get(alike.run, ''))}), too; by chance about "
            f"{alike.by_chance:.2g}"
        )


def _document_list(ids: Sequence[int]) -> str:
    """Return "3: documents 1, 2, 5", cut."""
    if not ids:
        return "none"
    more = (
        f" and {format_count(len(ids) - _MOST_DOCUMENTS)} more"
        if len(ids) > _MOST_DOCUMENTS
        else ""
    )
    return f"{format_count(len(ids))}: documents {', '.join(map(str, ids[:_MOST_DOCUMENTS]))}{more}"
