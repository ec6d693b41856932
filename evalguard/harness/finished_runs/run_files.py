"""RunFiles: which files of a folder make up one lm-eval run.

Layouts of lm-eval 0.4.x: ``OUTPUT/MODEL/results_DATE.json`` with ``samples_TASK_DATE.jsonl``
beside it; with ``--output_path NAME.json``: ``NAME_DATE.json`` and the samples beside it; before
0.4.3 an undated ``results.json``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.errors import EvaluationError, UsageError
from evalguard.harness.finished_runs.foreign_json import read_file
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
    found = _results_in(folder)
    names = sorted({_name(results) for results in found})
    if len(names) > 1:
        raise UsageError(
            f"{folder} holds runs of several names: {', '.join(names)}",
            hint="give the results file of one of them",
        )
    newest = max(found, key=lambda results: (_date(results), results.name))
    older = sorted(set(found) - {newest}, key=_date, reverse=True)
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
