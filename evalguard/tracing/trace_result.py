"""TraceResult: what ``trace`` returns, and the files that it leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from evalguard.comparison.report_files import write_run_page
from evalguard.comparison.stored_run import TRACE_FILE, open_run_trace
from evalguard.config.options import DEFAULT_OUTPUT, CompareOptions
from evalguard.core.result import Result
from evalguard.core.settings import Value
from evalguard.core.trace_record import SuspectModule
from evalguard.errors import EvalguardError, StoreError, UsageError, error_text
from evalguard.report.formats import refuse_dash
from evalguard.store.atomic_files import check_output, write_output
from evalguard.store.run_folder import RunFolder, write_document, write_text
from evalguard.tracing.trace_report import (
    TraceReport,
    trace_document,
)

TRACE_PAGE = "trace.html"
TraceFormat = Literal["text", "json", "html"]
_SUFFIXES: dict[str, TraceFormat] = {
    ".html": "html", ".htm": "html", ".json": "json", ".txt": "text",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceResult(Result[TraceReport]):
    """A finished trace.

    Exit code 0: nothing beyond the floor; 1: a location is named; 3: nothing known.

    ``problems`` say what could not be written; they change no exit code.
    """

    problems: tuple[str, ...] = ()

    @property
    def first(self) -> SuspectModule | None:
        """The first module beyond the floor; None: nothing is."""
        return self.report.trace.first

    @property
    def suspects(self) -> tuple[SuspectModule, ...]:
        """Modules beyond the floor, the largest local ratio first."""
        return self.report.trace.suspects

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.trace/1``) as plain data."""
        return trace_document(self.report)

    def to_html(self) -> str:
        """Return the trace as one self-contained page."""
        from evalguard.tracing.trace_page import render_trace_page

        return render_trace_page(self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the trace."""
        from evalguard.tracing.trace_page import render_trace

        return render_trace(self.report, width=width, color=color, verbose=verbose)

    def rendered(self, format: TraceFormat) -> str:
        """Return the whole trace in a format, as a file holds it."""
        if format == "html":
            return self.to_html()
        return (self.to_json() if format == "json" else self.render(verbose=True)) + "\n"

    def save(self, path: str | Path, format: TraceFormat | None = None) -> None:
        """Write the trace to a file.

        Args:
            format: None: the one that the suffix says.

        Raises:
            UsageError: no format is known by that suffix, or the file's folder is not there.
            StoreError: it cannot be written.
        """
        (file,) = requested_trace_files([Path(path)], format)
        write_output(file, self.rendered(format or _SUFFIXES[file.suffix.lower()]))


def requested_trace_files(
    paths: Sequence[Path], format: TraceFormat | None = None
) -> tuple[Path, ...]:
    """Return the files that a trace is to be written to.

    Args:
        format: of all of them, whatever their suffixes say.

    Raises:
        UsageError: a suffix says no format, or the file cannot be written.
    """
    for path in paths:
        refuse_dash(path)
        if format is None and path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"{path}: the suffix {path.suffix!r} says no format of a trace",
                hint=f"one of {', '.join(_SUFFIXES)}",
            )
        check_output(path.expanduser())
    return tuple(path.expanduser() for path in paths)


def read_trace_folder(folder: Path) -> TraceResult | None:
    """Read the trace in a folder of its own; None where it is none, or a comparison's.

    Raises:
        StoreError: it is damaged.
    """
    folder = folder.expanduser()
    if (folder / "result.json").exists():
        return None
    report = open_run_trace(folder)
    return None if report is None else TraceResult(report)


def finish_trace(
    report: TraceReport, options: CompareOptions, files: Sequence[Path]
) -> TraceResult:
    problems: list[str] = []
    if options.write:
        try:
            report = _write_folder(report, options.output_path or DEFAULT_OUTPUT)
        except StoreError as error:
            problems.append(f"no folder was written: {error_text(error)}")
        problems += _write_beside(report)
    for path in files:
        try:
            TraceResult(report).save(path)
        except StoreError as error:
            problems.append(f"{path} was not written: {error_text(error)}")
    return TraceResult(report, tuple(problems))


def _write_folder(report: TraceReport, root: Path) -> TraceReport:
    created = datetime.fromisoformat(report.created)
    name = f"{report.candidate.name}-trace"
    with RunFolder.create(root, report.base.name, name, created) as folder:
        report = dataclasses.replace(report, folder=str(folder.path))
        write_document(folder.partial, TRACE_FILE, trace_document(report))
        write_text(folder.partial, TRACE_PAGE, TraceResult(report).to_html())
        folder.commit()
    return report


def _write_beside(report: TraceReport) -> list[str]:
    """Put the trace into the run folder of the comparison that its documents come from."""
    if report.run is None:
        return []
    try:
        write_document(Path(report.run), TRACE_FILE, trace_document(report))
        write_run_page(Path(report.run))
    except EvalguardError as error:  # the run is damaged, or gone
        return [f"the page of {report.run} does not show this trace: {error_text(error)}"]
    return []
