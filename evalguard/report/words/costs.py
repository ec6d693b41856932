"""What a comparison took, and what stopping early saved, in words."""

from __future__ import annotations

from evalguard.core.amounts import size_text
from evalguard.core.comparison import Comparison
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.resources import Resources
from evalguard.core.stopping import SequentialTask, Stopping
from evalguard.report.words import rounding
from evalguard.report.words.labels import format_percent, metric_label
from evalguard.report.words.plain_text import printable


def resources_text(resources: Resources | None) -> str:
    """Return one sentence: "1 min 12 s, of which scoring 58 s; 2,048 documents, ..."."""
    if resources is None:
        return ""
    time = f"Took {format_duration(resources.wall_seconds)}"
    parts = [time]
    if resources.answers:
        parts[0] += f", of which scoring {format_duration(resources.seconds('scoring'))}"
        documents = max(answers.documents for answers in resources.answers)
        kept = resources.kept_share
        parts.append(
            f"{rounding.format_count(documents)} documents"
            + (f", {_percent_text(kept)} from the cache" if kept else "")
        )
    parts += [
        f"{what} {size_text(found)}"
        for what, found in (
            ("peak memory", resources.peak_memory),
            ("of a worker", resources.worker_peak_memory),
            ("of the device", resources.device_peak_memory),
        )
        if found is not None
    ]
    return "; ".join(parts) + "."


def format_duration(seconds: float) -> str:
    """Return "0.4 s", "58 s", "1 min 12 s" or "1 h 5 min".

    >>> format_duration(72.3)
    '1 min 12 s'
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def _percent_text(share: float) -> str:
    """A share in whole percent; 0% and 100% only for none and all."""
    whole = round(100.0 * share)
    return f"{min(max(whole, 1), 99) if 0.0 < share < 1.0 else whole}%"


# Stopping early.


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
        if c.task == task.task and c.stopping is not None
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
