"""Changing a history: a finished run is put into it, old nights are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from evalguard.core.history_night import prunable
from evalguard.core.pairing import ALLOWED
from evalguard.core.reports.history_report import HistoryAddition, HistoryPruning
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError
from evalguard.harness.figure_tables import Answered, answers_by_document, with_paired_figures
from evalguard.run.base_of_run import read_score_tables
from evalguard.run.history.storage import build_night_run, build_stored_metrics
from evalguard.run.stored_run import StoredRun, read_stored_run
from evalguard.run.stored_tables import SideName, read_side_rows
from evalguard.store.history.history_file import HistoryFile
from evalguard.store.history.removal import remove_runs

_SIDES: tuple[SideName, ...] = ("base", "candidate")


class AlreadyInHistoryError(UsageError):
    """The history has this run."""


def add_run(file: Path, run: Path) -> HistoryAddition:
    """Put a finished run into a history, as if it had been made with ``--history``.

    Args:
        file: of the history; made where there is none.
        run: run folder.

    Raises:
        AlreadyKept: the history has the run.
        UsageError: this is not a run folder, or its samples are of an earlier evalguard.
        StoreError: something is damaged, or the history cannot be written.
    """
    stored = read_stored_run(run)
    report = stored.report
    tables = _with_paired_figures(
        stored,
        [
            tuple(table for of in read_score_tables(stored, side) for table in of.tables)
            for side in _SIDES
        ],
    )
    # They were paired when they were compared: what differed then was declared.
    metrics = build_stored_metrics(report, tables, ALLOWED)
    night = build_night_run(report)
    with HistoryFile(file, create=True) as history:
        for one in history.runs(night.pair):
            if replace(one, number=0, folder="") == replace(night, folder=""):
                raise AlreadyInHistoryError(
                    f"the history {file} has this run already: it is run {one.number}"
                )
        number = history.add(night, metrics, report.environment)
    return HistoryAddition(
        file=str(file),
        run=replace(night, number=number),
        metrics=len(metrics),
        with_documents=sum(one.documents is not None for one in metrics),
        notes=stored.notes,
    )


def _with_paired_figures(
    stored: StoredRun, tables: Sequence[tuple[ScoreTable, ...]]
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Both sides' tables with the figures that are of both models' answers."""

    def answers(task: str) -> tuple[Answered, Answered]:
        base, candidate = (read_side_rows(stored.samples(task), side) for side in _SIDES)
        return answers_by_document(task, base), answers_by_document(task, candidate)

    base, candidate = tables
    return with_paired_figures(base, candidate, answers)


def prune_runs(
    file: Path, *, days: float | None = None, nights: int | None = None, dry_run: bool = False
) -> HistoryPruning:
    """Take old runs out of a history.

    Args:
        days: runs of so many days are kept.
        nights: so many runs of every pair are kept. What either rule keeps stays.
        dry_run: only say which would be removed.

    Raises:
        UsageError: neither rule is given, there is no history, or it is damaged.
        StoreError: it cannot be written.
    """
    if days is None and nights is None:
        raise UsageError(
            "nothing says which nights are kept",
            hint="--keep-days N, --keep-nights N, or both: what either rule keeps stays",
        )
    before = file.stat().st_size if file.exists() else 0
    since = "" if days is None else _days_ago(days)
    with HistoryFile(file) as history:
        runs = history.runs()
        problems = tuple(history.problems)
    removed = prunable(runs, since=since, nights=nights)
    if removed and not dry_run:
        remove_runs(file, [run.number for run in removed])
    return HistoryPruning(
        file=str(file),
        removed=removed,
        kept=len(runs) - len(removed),
        size_before=before,
        size=file.stat().st_size,
        dry_run=dry_run,
        problems=problems,
    )


def _days_ago(days: float) -> str:
    try:
        since = datetime.now(timezone.utc) - timedelta(days=days)
    except OverflowError:
        return "0"  # before every time
    return since.isoformat(timespec="seconds")
