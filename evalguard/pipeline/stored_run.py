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
from evalguard.store import (
    check_run_file,
    read_result,
    read_samples,
    read_tokens,
    sample_files,
    token_files,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished comparison.

    Attributes:
        report: as it was made; its ``run_folder`` is where the run lies now.
        folder: the run folder.
        files: those of its tasks' documents that are there, by task, in the report's order; {}
            where only result.json is.
        sealed: whether its result has a checksum; one of an earlier version has none.
    """

    report: CompareReport
    folder: Path
    files: Mapping[str, Path]
    sealed: bool

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those whose documents are there."""
        return tuple(self.files)

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever relies on its numbers should know."""
        if not self.sealed:
            lacks = "no checksum"
        elif self.files and self.report.files is None:
            lacks = "no digests of the samples beside it"
        else:
            return ()
        return (
            f"{self.folder / 'result.json'} has {lacks}, as earlier versions wrote it: a "
            "change since then would not show",
        )

    def samples(self, task: str) -> Path:
        """Return the file of a task's documents, one of ``tasks``, as it was written.

        Raises:
            StoreError: it was changed since.
        """
        file = self.files[task]
        check_run_file(self.folder, file, self.report.files)
        return file

    def check_files(self) -> None:
        """Refuse a run of which any file of documents was changed since it was written.

        Raises:
            StoreError: naming the first.
        """
        for file in (*self.files.values(), *token_files(self.folder).values()):
            check_run_file(self.folder, file, self.report.files)

    def documents(self, task: str) -> RunDocuments | None:
        """Read a task's documents; None where they are not there.

        Raises:
            StoreError: a file is damaged, or was changed.
        """
        return _documents(self.folder, task, self.report.files)


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
        files={task: there[task] for task in tasks},
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


def documents_of(report: CompareReport) -> Documents:
    """Return what reads the documents of a report's run folder; nothing where there is none.

    What it returns raises StoreError where a file is damaged, or was changed.
    """
    folder = report.run_folder
    return lambda task: None if folder is None else _documents(Path(folder), task, report.files)


def _documents(folder: Path, task: str, digests: Mapping[str, str] | None) -> RunDocuments | None:
    samples = sample_files(folder).get(task)
    if samples is None:
        return None
    tokens = token_files(folder).get(task)
    for file in (samples, tokens):
        if file is not None:
            check_run_file(folder, file, digests)
    return RunDocuments(
        task=task,
        columns=read_samples(samples),
        tokens={} if tokens is None else read_tokens(tokens),
    )


def _placed(report: CompareReport, folder: Path) -> CompareReport:
    """A run folder that was moved is where it is now; the same place keeps its spelling."""
    said = report.run_folder
    same = said is not None and Path(said).resolve() == folder.resolve()
    return report if same else replace(report, run_folder=str(folder))
