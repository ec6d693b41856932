"""The files that a finished comparison is shown in: those of its run folder, and those asked for.

The verdict is not lost any more when they are made. What cannot be made is a note of the report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evalguard.comparison.stored_run import open_documents, open_run_trace, read_stored_run
from evalguard.config.options import CompareOptions
from evalguard.core.compare_report import CompareReport
from evalguard.core.option_words import Format
from evalguard.errors import Interrupted, error_text
from evalguard.report.formats import RENDERINGS, choose_format, render_report
from evalguard.store.atomic_files import check_output, write_output

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A file, and the format that it is written in."""

    path: Path
    format: Format


def requested_files(options: CompareOptions, *, cwd: Path) -> tuple[ReportFile, ...]:
    """Return the files that the user asked for; relative ones start at ``cwd``."""
    return tuple(
        ReportFile(path=cwd / path.expanduser(), format=choose_format(path, options.output_format))
        for path in dict.fromkeys(options.output)
    )


def check_files(files: tuple[ReportFile, ...]) -> None:
    """Refuse files that cannot be written, before anything long runs.

    Raises:
        UsageError: naming the first.
    """
    for file in files:
        check_output(file.path)


def write_files(report: CompareReport, paths: Iterable[Path], chosen: Format | None = None) -> None:
    """Write a report to files, each in the chosen format, else in that of its suffix.

    Raises:
        UsageError: before any is written: one cannot be, or its suffix says no format.
        StoreError: one cannot be written, or a file of the run folder is damaged.
    """
    files = tuple(ReportFile(path=path, format=choose_format(path, chosen)) for path in paths)
    check_files(files)
    for file in files:
        _write_file(report, file)


def _write_file(report: CompareReport, file: ReportFile) -> None:
    trace = open_run_trace(report.run_folder)
    write_output(file.path, render_report(report, file.format, open_documents(report), trace))


def write_run_page(folder: Path) -> None:
    """Write the page of a finished run once more: a trace of its models has come.

    Raises:
        StoreError: it cannot be written, or a file of the run folder is damaged.
    """
    report = read_stored_run(folder).report
    name = RENDERINGS["html"].run_file
    _write_file(report, ReportFile(path=folder / name, format="html"))


def write_report_files(report: CompareReport, asked: tuple[ReportFile, ...]) -> CompareReport:
    """Write the run folder's own files, then those that were asked for.

    No exception but one of the interpreter's own leaves this.

    Returns:
        The report, with a note for each file that could not be written.
    """
    for file in (*_run_folder_files(report), *asked):
        try:
            _write_file(report, file)
        except (KeyboardInterrupt, Interrupted):
            return _with_problem(report, file, "it was interrupted")
        except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
            _LOG.info("%s was not written", file.path, exc_info=True)  # shown under --debug
            report = _with_problem(report, file, error_text(error))
    return report


def _run_folder_files(report: CompareReport) -> Iterator[ReportFile]:
    if report.run_folder is not None:
        for name, rendering in RENDERINGS.items():
            if rendering.run_file:
                path = Path(report.run_folder) / rendering.run_file
                yield ReportFile(path=path, format=name)


def _with_problem(report: CompareReport, file: ReportFile, why: str) -> CompareReport:
    return report.with_unstored(f"{file.path} was not written: {why}")
