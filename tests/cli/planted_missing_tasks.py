"""One task of many is missing."""

from __future__ import annotations

from pathlib import Path

from breakages import NOTHING_KNOWN, REFUSED, Kind
from written_runs import (
    N,
    WrittenRun,
)

MISSING_TASKS = Kind("a task is missing")


@MISSING_TASKS.breaks(NOTHING_KNOWN, r"only the base")
def the_port_was_not_asked_one_task(_: WrittenRun, cand: WrittenRun) -> None:
    del cand.tasks["choices"]


@MISSING_TASKS.breaks(NOTHING_KNOWN, r"only the candidate")
def the_base_was_not_asked_one_task(base: WrittenRun, _: WrittenRun) -> None:
    del base.tasks["choices"]


@MISSING_TASKS.breaks(NOTHING_KNOWN, r"only the base")
def the_port_lacks_one_filter(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["numbers"]
    task.rows = task.of("strict-match")


@MISSING_TASKS.breaks(NOTHING_KNOWN, r"only the base")
def the_port_lacks_one_metric(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["words"]
    task.config["metric_list"] = task.config["metric_list"][:1]


@MISSING_TASKS.damages(NOTHING_KNOWN, r"(samples|choices)")
def one_samples_file_is_gone(folder: Path) -> None:
    next(folder.glob("samples_choices_*")).unlink()


@MISSING_TASKS.damages(REFUSED, r"has no samples files beside it")
def all_samples_files_are_gone(folder: Path) -> None:
    for file in folder.glob("samples_*"):
        file.unlink()


@MISSING_TASKS.breaks(NOTHING_KNOWN, r"(documents only in|limit)")
def half_of_a_tasks_documents_are_missing(_: WrittenRun, cand: WrittenRun) -> None:
    task = cand.tasks["choices"]
    task.rows = task.rows[: N // 2]
