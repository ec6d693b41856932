"""Trends of a history, written to files: an HTML page with plots, text, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalguard.core.reports.history_report import (
    TrendReport,
)
from evalguard.errors import UsageError
from evalguard.run.history.history_result import HistoryResult
from evalguard.store.output_file import check_output, write_output

_SUFFIXES = (".html", ".htm", ".txt", ".json")


def check_trend_files(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written.

    Raises:
        UsageError: naming the first.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"{path}: trends are not written as {path.suffix or 'a file without a suffix'}",
                hint=f"name it {' or '.join(f'*{one}' for one in _SUFFIXES)}",
            )
        check_output(path)


def write_trends(report: TrendReport, paths: Sequence[Path]) -> None:
    """Write trends to each file, in the format of its suffix.

    Raises:
        StoreError: one cannot be written.
    """
    for path in paths:
        write_output(path, _render_trends(report, path.suffix.lower()))


def _render_trends(report: TrendReport, suffix: str) -> str:
    if suffix in (".html", ".htm"):
        from evalguard.report.html.history_page import render_history_page

        return render_history_page(report)
    result = HistoryResult(report)
    return (result.to_json() if suffix == ".json" else result.render()) + "\n"
