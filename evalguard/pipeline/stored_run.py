"""StoredRun: a finished comparison, read back from its run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard import checksum
from evalguard.compare_report import CompareReport
from evalguard.errors import StoreError
from evalguard.report.contract import SCHEMA
from evalguard.report.formats import Documents
from evalguard.report.stored import read_report
from evalguard.run_documents import RunDocuments
from evalguard.store import read_result, read_samples, read_tokens, sample_files, token_files


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished comparison.

    Attributes:
        report: as it was made; its ``run_folder`` is where the run lies now.
        folder: the run folder.
        tasks: those whose documents are there, in the report's order; () where only result.json
            is.
        sealed: whether its result has a checksum; one of an earlier version has none.
    """

    report: CompareReport
    folder: Path
    tasks: tuple[str, ...]
    sealed: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever relies on its numbers should know."""
        if self.sealed:
            return ()
        return (
            f"{self.folder / 'result.json'} has no checksum, as earlier versions wrote it: a "
            "change since then would not show",
        )

    def documents(self, task: str) -> RunDocuments | None:
        """Read a task's documents; None where they are not there.

        Raises:
            StoreError: a file is damaged.
        """
        return stored_documents(self.folder, task)


def stored_run(path: Path) -> StoredRun:
    """Read a run folder, or its result.json.

    Raises:
        UsageError: there is no result, or it is none of a comparison.
        StoreError: it is damaged; the message names the key.
    """
    path = path.expanduser()
    document = read_result(path, schema=SCHEMA)
    folder = path if path.is_dir() else path.parent
    report = report_of(path, document)
    there = sample_files(folder)
    named = dict.fromkeys(c.task for c in report.comparisons)
    tasks = [*(task for task in named if task in there), *(t for t in there if t not in named)]
    return StoredRun(
        report=_placed(report, folder),
        folder=folder,
        tasks=tuple(tasks),
        sealed=checksum.KEY in document,
    )


def report_of(path: Path, document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a file's document was made of.

    Raises:
        StoreError: it is damaged; the message names file and key.
    """
    try:
        return read_report(document)
    except StoreError as error:
        raise StoreError(f"{path}: {error}", hint=error.hint) from error


def stored_documents(folder: Path, task: str) -> RunDocuments | None:
    """Read one task's documents of a run folder; None where they are not there.

    Raises:
        StoreError: a file is damaged.
    """
    samples = sample_files(folder).get(task)
    if samples is None:
        return None
    tokens = token_files(folder).get(task)
    return RunDocuments(
        task=task,
        columns=read_samples(samples),
        tokens={} if tokens is None else read_tokens(tokens),
    )


def documents_of(report: CompareReport) -> Documents:
    """Return what reads the documents of a report's run folder; nothing where there is none."""
    folder = report.run_folder
    return lambda task: None if folder is None else stored_documents(Path(folder), task)


def _placed(report: CompareReport, folder: Path) -> CompareReport:
    """A run folder that was moved is where it is now; the same place keeps its spelling."""
    said = report.run_folder
    same = said is not None and Path(said).resolve() == folder.resolve()
    return report if same else replace(report, run_folder=str(folder))
