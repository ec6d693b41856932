"""The files that a finished comparison is shown in: those of its run folder, and those asked for.

The verdict is not lost any more when they are made. What cannot be made is a note of the report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.compare_report import CompareReport
from evalguard.errors import Interrupted
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.stored_run import documents_of
from evalguard.pipeline.told_error import told
from evalguard.report.formats import RENDERINGS, format_of, rendered
from evalguard.report_format import Format
from evalguard.store import check_output, write_output

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A file, and the format that it is written in."""

    path: Path
    format: Format


def asked_files(options: CompareOptions, *, cwd: Path) -> tuple[ReportFile, ...]:
    """Return the files that the user asked for; relative ones start at ``cwd``."""
    return tuple(
        ReportFile(path=cwd / path.expanduser(), format=format_of(path, options.output_format))
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
    files = tuple(ReportFile(path=path, format=format_of(path, chosen)) for path in paths)
    check_files(files)
    for file in files:
        _write(report, file)


def _write(report: CompareReport, file: ReportFile) -> None:
    write_output(file.path, rendered(report, file.format, documents_of(report)))


def shown_in_files(report: CompareReport, asked: tuple[ReportFile, ...]) -> CompareReport:
    """Write the run folder's own files, then those that were asked for.

    No exception but one of the interpreter's own leaves this.

    Returns:
        The report, with a note for each file that could not be written.
    """
    for file in (*_of_run_folder(report), *asked):
        try:
            _write(report, file)
        except (KeyboardInterrupt, Interrupted):
            return _noted(report, file, "it was interrupted")
        except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
            _LOG.info("%s was not written", file.path, exc_info=True)  # shown under --debug
            report = _noted(report, file, told(error))
    return report


def _of_run_folder(report: CompareReport) -> Iterator[ReportFile]:
    if report.run_folder is not None:
        for name, rendering in RENDERINGS.items():
            if rendering.run_file:
                path = Path(report.run_folder) / rendering.run_file
                yield ReportFile(path=path, format=name)


def _noted(report: CompareReport, file: ReportFile, why: str) -> CompareReport:
    note = f"{file.path} was not written: {why}"
    return replace(report, notes=(*report.notes, note))
