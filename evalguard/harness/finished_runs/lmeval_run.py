"""A finished lm-eval run, read back and checked.

Layouts of lm-eval 0.4.x: ``OUTPUT/MODEL/results_DATE.json`` with ``samples_TASK_DATE.jsonl``
beside it; with ``--output_path NAME.json``: ``NAME_DATE.json`` and the samples beside it; before
0.4.3 an undated ``results.json``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evalguard.core.document_columns import DocumentColumns, DocumentFields, Rows, Texts
from evalguard.core.findings import Finding
from evalguard.core.scores import NotCompared, ScoreTable, TaskGroup
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.harness.finished_runs.foreign_json import read_file
from evalguard.harness.finished_runs.results_file import Results, stored_groups
from evalguard.harness.finished_runs.run_facts import (
    RunOrigin,
    caveats_of,
    find_cut_prompts,
    run_environment_of,
    run_reading,
)
from evalguard.harness.finished_runs.task_tables import read_task
from evalguard.regular_file import is_special

_DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_RESULTS = re.compile(rf"(?P<name>.+)_(?P<date>{_DATE})\.json")
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<date>{_DATE})\.jsonl")
_UNDATED_SAMPLES = re.compile(r"samples_(?P<task>.+)\.jsonl")
_UNDATED_RESULTS = "results.json"
_LOG_SAMPLES = (
    "run lm-eval once more with `--log_samples --output_path FOLDER` (0.4.3 or newer), and give "
    "that folder"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """One run on disk.

    Attributes:
        results: the results file.
        date: from its name, as lm-eval writes it; "" for an undated file.
        samples: samples file of each task.
        notes: what else lies there and was not read.
        older: results files of other dates in the folder, the newest first.
    """

    results: Path
    date: str
    samples: Mapping[str, Path]
    notes: tuple[str, ...] = ()
    older: tuple[Path, ...] = ()


def is_lmeval_run(path: Path) -> bool:
    """Whether a path is the folder or the results file of an lm-eval run, with samples or not."""
    if path.is_dir():
        return bool(_results_in(path)) or any(_results_in(folder) for folder in _folders(path))
    return path.is_file() and _is_results(path)


def find_run(path: Path) -> RunFiles:
    """Find the one run that a path means; of several dates the newest.

    Raises:
        UsageError: if there is no run, more than one model's, or no samples were logged.
    """
    if path.is_file():
        if not _is_results(path):
            raise UsageError(
                f"{path} is not a results file of lm-eval",
                hint="give the folder of the run, or its results_DATE.json",
            )
        return _with_samples(path, ())
    if is_special(path):
        raise UsageError(f"{path} is not a regular file", hint="give a folder or a file")
    if not path.is_dir():
        raise UsageError(f"{path} does not exist")
    folder, notes = _folder_of_run(path)
    files = _results_in(folder)
    names = sorted({_name(results) for results in files})
    if len(names) > 1:
        raise UsageError(
            f"{folder} holds runs of several names: {', '.join(names)}",
            hint="give the results file of one of them",
        )
    newest = max(files, key=lambda results: (_date(results), results.name))
    older = sorted(set(files) - {newest}, key=_date, reverse=True)
    return replace(_with_samples(newest, notes), older=tuple(older))


def dates_with_task(results: Path, task: str) -> tuple[str, ...]:
    """Other dates in the same folder that have samples of a task, newest first."""
    dates = [
        match["date"]
        for path in results.parent.iterdir()
        if (match := _SAMPLES.fullmatch(path.name)) and match["task"] == task
    ]
    return tuple(sorted((date for date in dates if date != _date(results)), reverse=True))


def _folder_of_run(path: Path) -> tuple[Path, tuple[str, ...]]:
    deeper = [folder for folder in _folders(path) if _results_in(folder)]
    listed = ", ".join(folder.name for folder in deeper)
    if _results_in(path):
        note = f"runs in sub-folders of {path} are not read: {listed}"
        return path, (note,) if deeper else ()
    if not deeper:
        raise UsageError(f"no lm-eval run in {path}: it holds no results file", hint=_LOG_SAMPLES)
    if len(deeper) > 1:
        raise UsageError(
            f"{path} holds runs of several models: {listed}",
            hint=f"give one of them: {deeper[0]}",
        )
    return deeper[0], ()


def _folders(path: Path) -> list[Path]:
    return sorted(
        folder
        for folder in path.iterdir()
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    )


def _results_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and (_RESULTS.fullmatch(path.name) or path.name == _UNDATED_RESULTS)
        and _is_results(path)
    )


def _is_results(path: Path) -> bool:
    """Whether a file is lm-eval's; one with its name that cannot be read is taken for one."""
    if path.suffix != ".json":
        return False
    named = bool(re.fullmatch(rf"results_{_DATE}\.json", path.name))
    try:
        content = read_file(path)
    except EvaluationError:
        return named
    if not isinstance(content, dict):
        return named
    # lighteval names its files alike
    return {"results", "config"} <= content.keys() or (named and "config_general" not in content)


def _with_samples(results: Path, notes: tuple[str, ...]) -> RunFiles:
    date = _date(results)
    samples = {}
    for path in sorted(results.parent.iterdir()):
        match = _SAMPLES.fullmatch(path.name)
        if match is None and not date:
            match = _UNDATED_SAMPLES.fullmatch(path.name)
        if match is None or match.groupdict().get("date", "") != date or not path.is_file():
            continue
        # lm-eval would take such a name for a task file of the working folder, and run its code.
        if match["task"].endswith((".yaml", ".yml")):
            raise UsageError(f"{path} names no task of lm-eval: '{match['task']}'")
        samples[match["task"]] = path
    if not samples:
        old = any(path.suffix == ".jsonl" for path in results.parent.iterdir()) and not date
        why = "; lm-eval before 0.4.3 wrote samples without document hashes" if old else ""
        raise UsageError(
            f"{results} has no samples files beside it (samples_TASK_{date or 'DATE'}.jsonl): "
            f"without each document's scores runs cannot be paired{why}",
            hint=_LOG_SAMPLES,
        )
    return RunFiles(results=results, date=date, samples=samples, notes=notes)


def _date(results: Path) -> str:
    match = _RESULTS.fullmatch(results.name)
    return match["date"] if match else ""


def _name(results: Path) -> str:
    match = _RESULTS.fullmatch(results.name)
    return match["name"] if match else results.stem


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
        suffix = f" and {len(files.older) - 3} more" if len(files.older) > 3 else ""
        yield Finding(
            kind="run_chosen",
            text=f"of {len(files.older) + 1} runs in {files.results.parent} the newest is read, "
            f"{files.results.name} (older: {dates}{suffix})",
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
        base_hashes = tables[table.key].asked_hashes if table.key in tables else ()
        if isinstance(table.asked_hashes, Texts) and isinstance(base_hashes, Texts):
            table.asked_hashes.share(base_hashes)


def _chosen(files: RunFiles, results: Results, names: Sequence[str]) -> tuple[str, ...]:
    # In the order of the results file, which lm-eval sorts, whatever the folder's order.
    known = dict.fromkeys(task for task in results.content["results"] if task in files.samples)
    known.update(dict.fromkeys(files.samples))
    if not names:
        return tuple(known)
    chosen: dict[str, None] = {}
    for name in names:
        expanded = results.expand(name, known)
        if not expanded:
            raise UsageError(
                f"the lm-eval run {files.results} has no samples of task '{name}'"
                f"{nearest(name, known)}",
                hint=_elsewhere(files, name) or f"it has: {', '.join(known)}",
            )
        chosen.update(dict.fromkeys(expanded))
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
