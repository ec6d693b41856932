"""What a suspect is worth: the drift that goes away with the base's module in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalguard.core.reports.trace_report import SuspectModule, TraceReport
from evalguard.errors import EvalguardError, error_text
from evalguard.report.words.metric_labels import decisive_comparison
from evalguard.run.compare import compare_sides
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.modules.module_settings import note_mixed_code
from evalguard.run.modules.swap_effect import SwapEffect, measure_swap_effects
from evalguard.run.options import CompareOptions
from evalguard.run.sources import ModelSource
from evalguard.run.stored_run import StoredRun
from evalguard.store.run_tables import read_sample_facts

# Swapped unasked where the whole comparison took at most so many seconds to score.
_CHEAP_SECONDS = 60.0
_UNASKED = 2


def choose_swaps(asked: int | None, last: StoredRun | None) -> int:
    """Return how many suspects to swap: as asked; unasked two where a comparison of them is cheap.

    Args:
        last: the comparison whose scores the cache may have.
    """
    if asked is not None:
        return asked
    resources = None if last is None else last.report.resources
    if last is None or resources is None or decisive_comparison(last.report) is None:
        return 0
    fresh = 1.0 - resources.kept_share  # what came from the cache says nothing of the time
    if fresh <= 0.0:
        return 0
    return _UNASKED if resources.seconds("scoring") / fresh <= _CHEAP_SECONDS else 0


def with_swap_effects(
    report: TraceReport,
    named: tuple[str, str],
    options: CompareOptions,
    *,
    most: int,
    last: StoredRun | None,
    say: Callable[[str], None],
) -> TraceReport:
    """Return a trace whose first suspects say what they are worth on the task.

    The first one in order of execution and then the largest are swapped, each alone, in the
    comparison of both models; its scores come from the cache where they are there. What could not
    be measured is a note: the trace stands, also after Ctrl-C.

    Args:
        named: base and candidate, as they were typed.
        most: how many.
        last: the comparison that the documents come from; its task is the one that counts.
    """
    modules = _modules(report)[:most]
    if not modules:
        return report
    try:
        with_tasks = dataclasses.replace(options, **_comparison_options(last))
        finished = compare_sides(*named, with_tasks, cwd=Path.cwd())
        effects = measure_swap_effects(finished, modules, say=say)
        mixed = _note_mixed(finished)
    except EvalguardError as error:  # Ctrl-C, too: what was traced is shown
        note = f"what a module is worth on the task was not measured: {error_text(error)}"
        return dataclasses.replace(report, notes=(*report.notes, note))
    report = dataclasses.replace(report, notes=(*report.notes, *mixed))
    return _with_effects(report, effects)


def _note_mixed(finished: FinishedComparison) -> tuple[str, ...]:
    base, candidate = finished.sources[0], finished.candidate
    if candidate is None or not isinstance(base, ModelSource):
        return ()
    return note_mixed_code(base.variant, candidate.variant)


def _modules(report: TraceReport) -> list[str]:
    """Suspects by name, the first in order of execution in front."""
    first = report.trace.first
    ordered = [*([first] if first is not None else []), *report.trace.suspects]
    return list(dict.fromkeys(one.module for one in ordered))


def _comparison_options(last: StoredRun | None) -> dict[str, Any]:
    """What the comparison is asked with: as the last one, where there is one, by its worst task."""
    found: dict[str, Any] = {
        "limit": None, "write": False, "use_history": False, "bisect": "never",
        "track": ("none",), "output": (),
    }  # fmt: skip
    about = None if last is None else decisive_comparison(last.report)
    if last is None or about is None:
        return found
    found["tasks"] = (about.task,)
    facts = read_sample_facts(last.samples(about.task)) if about.task in last.tasks else {}
    tables = facts.get("candidate") or [{}]
    limit = tables[0].get("run", {}).get("limit")
    if isinstance(limit, (int, float)):
        found["limit"] = limit
    return found


def _with_effects(report: TraceReport, effects: tuple[SwapEffect, ...]) -> TraceReport:
    by_module = {one.module: one for one in effects}
    notes = [
        f"{one.module} could not be taken from the base: {one.failure}"
        for one in effects
        if one.failure
    ]

    def measured(one: SuspectModule) -> SuspectModule:
        effect = by_module.get(one.module)
        return one if effect is None else dataclasses.replace(one, swap_sigma=effect.sigma)

    first = report.trace.first
    trace = dataclasses.replace(
        report.trace,
        suspects=tuple(map(measured, report.trace.suspects)),
        first=None if first is None else measured(first),
    )
    known = [one for one in effects if one.sigma is not None]
    subject = f"{known[0].task} {known[0].metric}" if known else ""
    return dataclasses.replace(
        report, trace=trace, swap_task=subject, notes=(*report.notes, *notes)
    )
