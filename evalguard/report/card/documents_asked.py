"""Which part of its tasks' documents a run asked, in words, where that is not all of them."""

from __future__ import annotations

from collections.abc import Iterator

from evalguard.core.reports.asked_task import AskedTask
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.runs_alike import stops_early
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count

_MOST_NAMED = 5


def list_tasks(report: CompareReport) -> tuple[AskedTask, ...]:
    """Return how each task was asked; of results of earlier versions, as far as that is known."""
    if report.tasks:
        return report.tasks
    groups = {one.task for one in report.comparisons if one.subtasks}
    found = {
        one.task: AskedTask(task=one.task, n=one.n, n_total=one.n_total)
        for one in report.comparisons
        if one.task not in groups
    }
    return tuple(found.values())


def asked_in_part(report: CompareReport) -> bool:
    """Whether documents of any task were left out, by a limit or by stopping early."""
    return any(True for _ in _parts(report)) or stops_early(report)


def partly_asked_text(report: CompareReport) -> str:
    """Say which tasks were asked in part: "100 of 2,048 documents of piqa"; "" where none was."""
    parts = list(_parts(report))
    more = f" and {len(parts) - _MOST_NAMED} more tasks" if len(parts) > _MOST_NAMED else ""
    return ", ".join(parts[:_MOST_NAMED]) + more


def _parts(report: CompareReport) -> Iterator[str]:
    stopped = {} if report.sequential is None else {o.task: o for o in report.sequential.tasks}
    for one in list_tasks(report):
        n, total = one.n, one.n_total
        if one.task in stopped:
            n, total = stopped[one.task].n_used, max(total, stopped[one.task].n_total)
        if n < total:
            yield f"{format_count(n)} of {format_count(total)} documents of {printable(one.task)}"
