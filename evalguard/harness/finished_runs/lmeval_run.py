"""A finished lm-eval run, read back and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.core.document_fields import DocumentFields
from evalguard.core.documents.columns import DocumentColumns, Rows, Texts
from evalguard.core.reports.findings import Finding
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.task_group import TaskGroup
from evalguard.errors import UsageError, nearest
from evalguard.harness.finished_runs.origin import RunOrigin
from evalguard.harness.finished_runs.results_file import Results
from evalguard.harness.finished_runs.run_facts import (
    caveats_of,
    find_cut_prompts,
    run_environment_of,
    run_reading,
)
from evalguard.harness.finished_runs.run_files import RunFiles, dates_with_task, find_run
from evalguard.harness.finished_runs.stored_groups import stored_groups
from evalguard.harness.finished_runs.task_tables import read_task

Reported = Mapping[tuple[str, str, str], tuple[float, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmEvalRun:
    """A finished lm-eval run.

    Attributes:
        path: the results file.
        model_name, model_args: as lm-eval recorded them.
        date: from the file name, else when the run started; "" where unknown.
        tables: one per (task, filter, metric) that can be compared.
        not_compared: every other metric, with the reason.
        groups: groups that were asked for, and what is aggregated over their tasks.
        fields: task -> texts and whole numbers of its documents, which may say what they share.
        documents: task -> what was asked and answered (``samples.TaskSamples``).
        scoring: task -> how its answers are scored, as far as the run records it.
        notes: what lies there and was not read.
        findings: which run was chosen among several, and what became of its prompts.
        reported: (task, filter, metric) -> lm-eval's own value and standard error (None: none).
        environment: how the run was made, as far as it was recorded.
        origin: which model answered; None: nobody looked.
        lost: what the run scored, or should have, and has no scores of documents for, with the
            reason; a metric is lm-eval's placeholder "bypass" where none was scored.
    """

    path: Path
    model_name: str
    model_args: Mapping[str, Value]
    date: str
    tables: tuple[ScoreTable, ...]
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    documents: Mapping[str, Rows] = field(default_factory=dict)
    scoring: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    reported: Reported = field(default_factory=dict)
    environment: Mapping[str, Value] = field(default_factory=dict)
    origin: RunOrigin | None = None
    lost: Mapping[tuple[str, str, str], str] = field(default_factory=dict)


def read_run(path: Path, *, tasks: Sequence[str] | None = None) -> LmEvalRun:
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
    environment = run_environment_of(results)
    chosen = _chosen(files, results, tasks or ())
    read = [
        read_task(
            results,
            task,
            files.samples[task],
            source=str(path),
            caveats=caveats_of(
                environment, generated=results.output_type(task) == "generate_until"
            ),
        )
        for task in chosen
    ]
    reading = run_reading(results)
    tables = tuple(replace(table, reading=reading) for task in read for table in task.tables)
    groups, unusable = stored_groups(results, tables, tasks or ())
    return LmEvalRun(
        path=files.results,
        model_name=results.model_name,
        model_args=results.model_args,
        date=files.date or results.date,
        tables=tables,
        not_compared=(
            *(left_out for task in read for left_out in task.not_compared),
            *unusable,
        ),
        groups=groups,
        fields={task: of.fields for task, of in zip(chosen, read, strict=True)},
        documents={task: of.documents for task, of in zip(chosen, read, strict=True)},
        scoring={task: results.scoring(task) for task in chosen},
        notes=files.notes,
        findings=(
            *_find_older(files),
            *find_cut_prompts(
                results, {task: of.documents for task, of in zip(chosen, read, strict=True)}
            ),
        ),
        reported={of.key: results.reported(of.task, of.metric, of.filter) for of in tables},
        environment=environment,
        origin=RunOrigin.of(results),
        lost=dict(_lost(files, results, tasks or ())),
    )


def _find_older(files: RunFiles) -> Iterator[Finding]:
    """Say which of several runs in a folder is read."""
    if files.older:
        dates = ", ".join(path.stem.rpartition("_")[2] or path.name for path in files.older[:3])
        more = f" and {len(files.older) - 3} more" if len(files.older) > 3 else ""
        yield Finding(
            kind="run_chosen",
            text=f"of {len(files.older) + 1} runs in {files.results.parent} the newest is read, "
            f"{files.results.name} (older: {dates}{more})",
            values={
                "read": files.results.name,
                "older": tuple(path.name for path in files.older),
            },
        )


def share_documents(base: LmEvalRun, candidate: LmEvalRun) -> None:
    """Keep in memory once what two runs' documents have in common, which is most of it."""
    for task, theirs in candidate.documents.items():
        ours = base.documents.get(task)
        if isinstance(theirs, DocumentColumns) and isinstance(ours, DocumentColumns):
            theirs.share(ours)
    tables = {table.key: table for table in base.tables}
    for table in candidate.tables:
        one = tables[table.key].asked_hashes if table.key in tables else ()
        if isinstance(table.asked_hashes, Texts) and isinstance(one, Texts):
            table.asked_hashes.share(one)


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


def _lost(
    files: RunFiles, results: Results, names: Sequence[str]
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Metrics that the results file has and no samples give, of the tasks that are asked."""
    children = results.content.get("group_subtasks") or {}
    groups = {name for name, of in children.items() if of}
    below = [str(task) for of in children.values() for task in of or ()]
    every = dict.fromkeys((*(results.content.get("configs") or {}), *below))
    tasks = {task: None for task in every if task not in groups}
    asked = {task for name in names for task in results.expand(name, tasks)} if names else tasks
    for task in tasks:
        if task not in asked:
            continue
        if task not in files.samples:
            reason = (
                f"{files.results.parent} has no samples file of it; run lm_eval once more with "
                "--log_samples, or leave the task out with --tasks"
            )
        elif results.without_scores(task):
            reason = (
                f"{files.results.parent} holds answers without scores (lm_eval --predict_only); "
                "run lm_eval once more without it"
            )
        else:
            continue
        for metric, filter_name in list(results.metrics(task)) or [("bypass", "none")]:
            yield (task, filter_name, metric), reason


def _elsewhere(files: RunFiles, task: str) -> str:
    dates = dates_with_task(files.results, task)
    return (
        f"the run of {dates[0]} in the same folder has it: give its results file" if dates else ""
    )
