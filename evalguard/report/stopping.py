"""Stopping early: for the JSON document and for people."""

from __future__ import annotations

from typing import Any

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.report import rounding
from evalguard.report.plain_text import printable
from evalguard.report.resources import duration
from evalguard.report.wording import metric_label, percent
from evalguard.stopping import SequentialRun, SequentialTask, Stopping


def stopping_document(stopping: Stopping | None) -> dict[str, Any] | None:
    """Return one metric's part as JSON values; None in an ordinary run."""
    if stopping is None:
        return None
    return {
        "n_total": stopping.n_total,
        "n_used": stopping.n_used,
        "look": stopping.look,
        "looks": list(stopping.looks),
        "seed": stopping.seed,
        "alpha": stopping.alpha,
        "alpha_below": stopping.alpha_below,
        "alpha_above": stopping.alpha_above,
        "error_chance": stopping.error_chance,
        "method": stopping.method,
        "assumed_worst": stopping.assumed_worst,
        "seen_worst": stopping.seen_worst,
        "assumption": stopping.assumption,
        "guarantee": stopping.guarantee,
    }


def sequential_document(run: SequentialRun | None) -> dict[str, Any] | None:
    """Return the run's part as JSON values; None in an ordinary run."""
    if run is None:
        return None
    return {
        "alpha": run.alpha,
        "gated": run.gated,
        "seed": run.seed,
        "loads": run.loads,
        "saved_seconds": run.saved_seconds,
        "tasks": [
            {
                "task": task.task,
                "n_used": task.n_used,
                "n_total": task.n_total,
                "look": task.look,
                "looks": list(task.looks),
                "reason": task.reason,
            }
            for task in run.tasks
        ],
    }


def stopping_texts(report: CompareReport) -> list[str]:
    """Return the paragraphs that the terminal shows: the promise, then each task."""
    run = report.sequential
    if run is None:
        return []
    if not run.early:
        tasks = "; ".join(map(_in_full, run.tasks))
        return [f"Not stopped early, so that the verdict is the ordinary one: {tasks}."]
    promise = (
        "Stopped early: the gate's verdict is that of all documents, wrong in at most "
        f"{percent(run.alpha)} of document orders (seed {run.seed}"
    )
    if run.gated > 1:
        each = f"{100.0 * run.alpha / run.gated:.2g}%"
        promise += f"; {run.gated} gated metrics, each shown above the margin at {each}"
    told = (f"{_told(task, report.comparisons)}." for task in run.tasks)
    return [f"{promise}).", *told, *_saved(run.saved_seconds)]


def _saved(seconds: float | None) -> list[str]:
    if seconds is None:
        return []
    if seconds < 0.0:
        loading = "loading the models several times took longer than scoring the rest would have"
        return [f"No time saved: {loading}, by about {duration(-seconds)}."]
    return [f"Saved about {duration(seconds)}, at the pace of the documents scored now."]


def _told(task: SequentialTask, comparisons: tuple[Comparison, ...]) -> str:
    if task.n_used == task.n_total:
        return _in_full(task)
    head = (
        f"{printable(task.task)}: {rounding.count(task.n_used)} of "
        f"{rounding.count(task.n_total)} documents, look {task.look} of {len(task.looks)}"
    )
    own = [
        (metric_label(c), c.stopping)
        for c in comparisons
        if c.task == task.task and c.stopping is not None
    ]
    exact = [name for name, stopping in own if not stopping.assumption]
    parts = [f"{', '.join(exact)} exact"] if exact else []
    parts += [f"{name}{_kind(s)} if {printable(s.assumption)}" for name, s in own if s.assumption]
    return "; ".join([head, *parts])


def _kind(stopping: Stopping) -> str:
    return " (asymptotic)" if stopping.method == "bounded-betting" else ""


def _in_full(task: SequentialTask) -> str:
    why = f" ({printable(task.reason)})" if task.reason else ""
    return f"{printable(task.task)}: all {rounding.count(task.n_total)} documents{why}"
