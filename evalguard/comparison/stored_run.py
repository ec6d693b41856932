"""StoredRun: a finished comparison, read back from its run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalguard import tools
from evalguard.core.checksum import CHECKSUM_KEY
from evalguard.core.compare_report import CompareReport, RunDocuments
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.report.compare_document import COMPARE_SCHEMA, read_report
from evalguard.report.formats import DocumentSource
from evalguard.store.run_folder import check_run_file, read_result
from evalguard.store.run_tables import SampleColumns, read_tokens, sample_files, token_files


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
        listed = sample_files(self.folder), token_files(self.folder)
        return _read_documents(self.folder, task, self.report.files, *listed)


def read_stored_run(path: Path) -> StoredRun:
    """Read a run folder, or its result.json.

    Raises:
        UsageError: there is no result, or it is none of a comparison.
        StoreError: it is damaged; the message names the key.
    """
    path = path.expanduser()
    document = read_result(path, schema=COMPARE_SCHEMA)
    folder = path if path.is_dir() else path.parent
    report = rebuild_report(path, document)
    there = sample_files(folder)
    named = dict.fromkeys(c.task for c in report.comparisons)
    tasks = [*(task for task in named if task in there), *(t for t in there if t not in named)]
    return StoredRun(
        report=_with_location(report, folder),
        folder=folder,
        files={task: there[task] for task in tasks},
        sealed=CHECKSUM_KEY in document,
    )


def rebuild_report(path: Path, document: Mapping[str, Any]) -> CompareReport:
    """Return the report that a file's document was made of.

    Raises:
        StoreError: it is damaged; the message names file and key.
    """
    try:
        return read_report(document)
    except StoreError as error:
        raise StoreError(f"{path}: {error}", hint=error.hint) from error


def open_documents(report: CompareReport) -> DocumentSource:
    """Return what reads the documents of a report's run folder; nothing where there is none.

    What it returns raises StoreError where a file is damaged, or was changed.
    """
    if report.run_folder is None:
        return lambda _task: None
    folder = Path(report.run_folder)
    files: list[tuple[Mapping[str, Path], Mapping[str, Path]]] = []

    def read(task: str) -> RunDocuments | None:
        if not files:  # once: each file has to be opened to see whose it is
            files.append((sample_files(folder), token_files(folder)))
        return _read_documents(folder, task, report.files, *files[0])

    return read


TRACE_FILE = "trace.json"  # of a trace of the two models, in a run folder or in its own


def open_run_trace(folder: Path | str | None) -> Any:
    """Return the ``TraceReport`` that lies in a folder; None where there is none, or no `trace`.

    Raises:
        StoreError: it is damaged.
    """
    file = None if folder is None else Path(folder) / TRACE_FILE
    if file is None or not file.is_file() or not tools.has("read_trace_file"):
        return None
    return tools.fetch("read_trace_file")(file)


def _read_documents(
    folder: Path,
    task: str,
    digests: Mapping[str, str] | None,
    of_samples: Mapping[str, Path],
    of_tokens: Mapping[str, Path],
) -> RunDocuments | None:
    samples = of_samples.get(task)
    if samples is None:
        return None
    tokens = of_tokens.get(task)
    for file in (samples, tokens):
        if file is not None:
            check_run_file(folder, file, digests)
    return RunDocuments(
        task=task,
        columns=SampleColumns(samples),
        tokens={} if tokens is None else read_tokens(tokens),
    )


def _with_location(report: CompareReport, folder: Path) -> CompareReport:
    """A run folder that was moved is where it is now; the same place keeps its spelling."""
    recorded = report.run_folder
    same = recorded is not None and Path(recorded).resolve() == folder.resolve()
    return report if same else replace(report, run_folder=str(folder))


# Pairing compares what follows from these.
_MODEL_DEFAULTS = ("rolling_bos", "add_bos_token", "prefix_token_id")


def describe_differences(then: Mapping[str, Value], now: Mapping[str, Value]) -> tuple[str, ...]:
    """Say what differs, in one note; () where nothing does.

    Args:
        then: of the stored base: python, platform, device, threads, packages ...
        now: the same of the candidate.
    """
    differing = list(_differing_values(then, now))
    if not differing:
        return ()
    return (
        "the stored base was scored elsewhere or with other versions: "
        f"{'; '.join(differing)}. Scores may differ by that alone",
    )


def _differing_values(then: Mapping[str, Value], now: Mapping[str, Value]) -> Iterator[str]:
    for name in dict.fromkeys((*then, *now)):
        if name in _MODEL_DEFAULTS:
            continue
        ours, theirs = then.get(name), now.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            yield from _differing_values(ours, theirs)
        elif ours != theirs:
            yield f"{name} {_value_text(ours)} then, {_value_text(theirs)} now"


def _value_text(value: Value) -> str:
    return "unknown" if value is None else str(value)
