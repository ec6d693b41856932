"""StoredRun: a finished lm-eval run, read back and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.document_fields import DocumentFields
from evalguard.errors import UsageError, nearest
from evalguard.lmeval_runs.environment import caveats_of, environment_of, reading_of
from evalguard.lmeval_runs.files import RunFiles, dates_with_task, find_run
from evalguard.lmeval_runs.groups import stored_groups
from evalguard.lmeval_runs.results import Results
from evalguard.lmeval_runs.tables import read_task
from evalguard.scores import NotCompared, ScoreTable
from evalguard.settings import Value
from evalguard.task_group import TaskGroup

Reported = Mapping[tuple[str, str, str], tuple[float, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished lm-eval run.

    Attributes:
        path: the results file.
        model_name, model_args: as lm-eval recorded them.
        date: from the file name, else when the run started; "" where unknown.
        tables: one per (task, filter, metric) that can be compared.
        not_compared: every other metric, with the reason.
        groups: groups that were asked for, and what is aggregated over their tasks.
        fields: task -> texts and whole numbers of its documents, which may say what they share.
        documents: task -> what was asked and answered, see ``document_rows``.
        notes: what was chosen among several, what lies there and was not read.
        reported: (task, filter, metric) -> lm-eval's own value and standard error (None: none).
        environment: how the run was made, as far as it was recorded.
    """

    path: Path
    model_name: str
    model_args: Mapping[str, Value]
    date: str
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    documents: Mapping[str, tuple[Mapping[str, Value], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reported: Reported = field(default_factory=dict)
    environment: Mapping[str, Value] = field(default_factory=dict)


def read_run(path: Path, *, tasks: Sequence[str] | None = None) -> StoredRun:
    """Read a finished lm-eval run made with ``--log_samples``.

    Args:
        path: the run's folder, the folder above it, or its results file.
        tasks: names of tasks, groups or wildcards to read; None or empty: all with samples.

    Raises:
        UsageError: if there is no such run, no samples, samples without hashes, or a task that
            the run does not have.
        EvaluationError: if a file is damaged, or samples and results are of different runs.
    """
    files = find_run(path)
    results = Results.read(files.results)
    environment = environment_of(results)
    chosen = _chosen(files, results, tasks or ())
    caveats = caveats_of(environment)
    read = [
        read_task(results, task, files.samples[task], source=str(path), caveats=caveats)
        for task in chosen
    ]
    reading = reading_of(results)
    tables = tuple(replace(table, reading=reading) for task in read for table in task.tables)
    groups, unusable = stored_groups(results, tables, tasks or ())
    return StoredRun(
        path=files.results,
        model_name=results.model_name,
        model_args=results.model_args,
        date=files.date or results.date,
        tables=tables,
        not_compared=(
            *(left_out for task in read for left_out in task.not_compared),
            *(() if tasks else _without_samples(files, results)),
            *unusable,
        ),
        groups=groups,
        fields={task: of.fields for task, of in zip(chosen, read, strict=True)},
        documents={task: of.documents for task, of in zip(chosen, read, strict=True)},
        notes=files.notes,
        reported={of.key: results.reported(of.task, of.metric, of.filter) for of in tables},
        environment=environment,
    )


def _chosen(files: RunFiles, results: Results, names: Sequence[str]) -> tuple[str, ...]:
    # In the order of the results file, which lm-eval sorts, whatever the folder's order.
    known = dict.fromkeys(task for task in results.content["results"] if task in files.samples)
    known.update(dict.fromkeys(files.samples))
    if not names:
        return tuple(known)
    chosen: dict[str, None] = {}
    for name in names:
        found = results.expand(name, known)
        if not found:
            raise UsageError(
                f"the lm-eval run {files.results} has no samples of task '{name}'"
                f"{nearest(name, known)}",
                hint=_elsewhere(files, name) or f"it has: {', '.join(known)}",
            )
        chosen.update(dict.fromkeys(found))
    return tuple(chosen)


def _without_samples(files: RunFiles, results: Results) -> Iterator[NotCompared]:
    for task in results.content.get("configs") or {}:
        if task not in files.samples:
            yield NotCompared(
                task=task, metric="", reason=f"{files.results.parent} has no samples file of it"
            )


def _elsewhere(files: RunFiles, task: str) -> str:
    dates = dates_with_task(files.results, task)
    return (
        f"the run of {dates[0]} in the same folder has it: give its results file" if dates else ""
    )
