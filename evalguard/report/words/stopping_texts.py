"""What stopping early promises and saved, in words."""

from __future__ import annotations

from evalguard.core.comparison import Comparison
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.stopping import SequentialTask, Stopping
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import format_percent, metric_label
from evalguard.report.words.plain_text import printable
from evalguard.report.words.run_costs import format_duration


def stopping_texts(report: CompareReport) -> list[str]:
    """Return the paragraphs that the terminal shows: the promise, then each task."""
    run = report.sequential
    if run is None:
        return []
    if not run.early:
        tasks = "; ".join(map(_full_task_text, run.tasks))
        return [f"Not stopped early, so that the verdict is the ordinary one: {tasks}."]
    promise = (
        "Stopped early: the gate's verdict is that of all documents, wrong in at most "
        f"{format_percent(run.alpha)} of document orders (seed {run.seed}"
    )
    if run.gated > 1:
        each = f"{100.0 * run.alpha / run.gated:.2g}%"
        promise += f"; {run.gated} gated metrics, each shown above the margin at {each}"
    told = (f"{_task_text(task, report.comparisons)}." for task in run.tasks)
    return [f"{promise}).", *told, *_saved_texts(run.saved_seconds)]


def _saved_texts(seconds: float | None) -> list[str]:
    if seconds is None:
        return []
    if seconds < 0.0:
        loading = "loading the models several times took longer than scoring the rest would have"
        return [f"No time saved: {loading}, by about {format_duration(-seconds)}."]
    return [f"Saved about {format_duration(seconds)}, at the pace of the documents scored now."]


def _task_text(task: SequentialTask, comparisons: tuple[Comparison, ...]) -> str:
    if task.n_used == task.n_total:
        return _full_task_text(task)
    head = (
        f"{printable(task.task)}: {rounding.format_count(task.n_used)} of "
        f"{rounding.format_count(task.n_total)} documents, look {task.look} of {len(task.looks)}"
    )
    own = [
        (metric_label(c), c.stopping)
        for c in comparisons
        if c.task == task.task and c.stopping is not None and c.stopping.error_chance < 1.0
    ]
    exact = [name for name, stopping in own if not stopping.assumption]
    parts = [f"{', '.join(exact)} exact"] if exact else []
    parts += [
        f"{name}{_method_note(s)} if {printable(s.assumption)}" for name, s in own if s.assumption
    ]
    return "; ".join([head, *parts])


def _method_note(stopping: Stopping) -> str:
    return " (asymptotic)" if stopping.method == "bounded-betting" else ""


def _full_task_text(task: SequentialTask) -> str:
    why = f" ({printable(task.reason)})" if task.reason else ""
    return f"{printable(task.task)}: all {rounding.format_count(task.n_total)} documents{why}"
