"""A finished comparison of tensors, rendered and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evalguard.core.reports.tensors_report import TensorsReport
from evalguard.errors import StoreError, UsageError
from evalguard.report.tensors.contract import tensors_document
from evalguard.report.tensors.page import render_tensors_page
from evalguard.report.tensors.terminal import render_tensors
from evalguard.report.tensors.tolerance_table import render_tolerances
from evalguard.store.output_file import check_output, write_output

_SUFFIXES = {".html": "html", ".htm": "html", ".json": "json", ".txt": "txt"}


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written, or whose form is not known, before anything is read.

    Raises:
        UsageError: one of them.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"-o {path}: the form is not known by its suffix", hint="use .html, .json or .txt"
            )
        check_output(path)


def write_outputs(report: TensorsReport, paths: Sequence[Path]) -> tuple[str, ...]:
    """Write the report to files; return what could not be written."""
    problems = []
    for path in paths:
        try:
            form = _SUFFIXES[path.suffix.lower()]
            write_output(path, render_report(report, form, verbose=True) + "\n")
        except StoreError as error:
            problems.append(str(error))
    return tuple(problems)


def render_report(
    report: TensorsReport, form: str, *, width: int = 80, color: bool = False, verbose: bool = False
) -> str:
    """Return a report as "html", "json" or "txt"."""
    if form == "html":
        return render_tensors_page(report)
    if form == "json":
        return json.dumps(tensors_document(report), indent=2, allow_nan=False)
    return render_tensors(report, width=width, color=color, verbose=verbose)


def render_tolerance_table(*, width: int, color: bool) -> str:
    """Return the table of tolerances with its reasons."""
    return render_tolerances(width=width, color=color)
