"""Flips between two nights, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from evalguard.history.broken import BrokenDocuments
from evalguard.history.flips import Flips
from evalguard.history.report import FlipReport, MetricFlips
from evalguard.report.history_table import key_label, when
from evalguard.report.page import prose
from evalguard.report.plain_text import printable
from evalguard.report.rounding import count

_MOST_SHOWN = 12


def flip_blocks(report: FlipReport, width: int) -> Iterator[list[Text]]:
    """One block per metric, under a line that names the two nights."""
    first, second = report.first, report.second
    yield prose(
        f"{printable(second.candidate)} against {printable(second.base)}: run {first.number} "
        f"({when(first.created)}) -> run {second.number} ({when(second.created)})",
        width,
    )
    for metric in report.metrics:
        yield list(_metric(metric, report, width))


def _metric(found: MetricFlips, report: FlipReport, width: int) -> Iterator[Text]:
    yield Text(key_label(*found.key), style="bold")
    if found.flips is None or found.broken is None:
        yield from prose(printable(found.reason), width)
        return
    for line in _flips(found.flips):
        yield from prose(line, width)
    for line in _broken(found.broken, report):
        yield from prose(line, width)


def _flips(flips: Flips) -> Iterator[str]:
    others = [
        f"{count(number)} only in the {which}"
        for which, number in (("first", flips.only_first), ("second", flips.only_second))
        if number
    ]
    share = "".join(f", {text}" for text in others)
    yield f"{count(flips.shared)} documents{share}; {count(flips.same)} scored the same to the bit"
    if flips.lost is not None and flips.won is not None:
        yield f"lost {_ids(flips.lost)}"
        yield f"won {_ids(flips.won)}"
    elif flips.moved:
        told = [f"{moved.doc_id} ({-moved.worse:+.2g})" for moved in flips.moved]
        yield f"moved most: {', '.join(told)}; below 0 is worse"
    if flips.base_moved:
        yield f"the base scores {count(flips.base_moved)} of them otherwise, too"


def _broken(broken: BrokenDocuments, report: FlipReport) -> Iterator[str]:
    if not broken.total and not broken.repaired:
        return
    parts = [
        f"{count(len(broken.still))} still",
        f"{count(len(broken.new))} for the first time",
        f"{count(len(broken.again))} again",
    ]
    yield (
        f"broken in run {report.second.number}: {count(broken.total)} ({', '.join(parts)}); "
        f"{count(len(broken.repaired))} of the night before are repaired"
    )
    if broken.again:
        yield f"broken again {_ids(broken.again)}"
    alike = broken.alike
    if alike is not None:
        fresh = len(broken.new) + len(broken.again)
        yield (
            f"{count(alike.again)} of the {count(fresh)} that broke were broken in run {alike.run} "
            f"({when(report.nights.get(alike.run, ''))}), too; by chance about "
            f"{alike.by_chance:.2g}"
        )


def _ids(ids: Sequence[int]) -> str:
    """Return "3: documents 1, 2, 5", cut."""
    if not ids:
        return "none"
    more = f" and {count(len(ids) - _MOST_SHOWN)} more" if len(ids) > _MOST_SHOWN else ""
    return f"{count(len(ids))}: documents {', '.join(map(str, ids[:_MOST_SHOWN]))}{more}"
