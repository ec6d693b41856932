"""A finished comparison as a tracked run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from evalguard.core.redaction import redact_value, redacted_text
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.findings import without_quotes
from evalguard.core.reports.tracked_run import Alert, JobType, TrackedRun
from evalguard.report.contract.compare_document import compare_document
from evalguard.report.html.forest_page import render_forest_page
from evalguard.report.words.meaning import derive_meaning
from evalguard.report.words.plain_text import printable
from evalguard.run.publishing.ci_origin import read_origin
from evalguard.run.publishing.tracked_numbers import collect_numbers
from evalguard.run.publishing.tracker_tables import build_tables

# What people look into later; the tokens of all documents may be gigabytes.
_FILE_PATTERNS = ("result.json", "report.html", "junit.xml", "samples/*.parquet")
LARGEST_FILE = 100_000_000
_LONGEST_TAG = 64


def build_tracked_run(
    report: CompareReport,
    *,
    documents: bool = False,
    job_type: JobType | None = None,
    group: str | None = None,
) -> TrackedRun:
    """Return what is sent of a report.

    Args:
        documents: with prompts and answers, and the files of the run folder, which hold them;
            else figures, tables and plots alone.
        job_type: None: "bisect" where it holds a bisection, else "compare".
        group: None: the pull request or pipeline that CI's variables name.
    """
    report = report if documents else without_quotes(report)
    found = collect_numbers(report)
    files = _files_to_send(report) if documents else {}
    left_out = _files_too_large(report) if documents else []
    notes = "\n".join(redacted_text(one.line) for one in report.findings)
    summary = {
        **found.words,
        "state": report.gate.state,
        "sentence": redacted_text(derive_meaning(report).sentence),
        **({"notes": notes} if notes else {}),
        **({"bisect/status": report.bisect.status} if report.bisect else {}),
        **({"files left out": ", ".join(left_out)} if left_out else {}),
    }
    return TrackedRun(
        name=printable(f"{report.base.name} vs {report.candidate.name}"),
        job_type=job_type or ("bisect" if report.bisect else "compare"),
        group=read_origin(os.environ).group if group is None else group,
        tags=_run_tags(report),
        config=_run_config(report),
        scalars=found.scalars,
        charts=found.charts,
        summary=summary,
        tables=build_tables(report, documents=documents),
        pages={"forest": render_forest_page(report)} if report.comparisons else {},
        files=files,
        alert=_gate_alert(report),
    )


def _run_config(report: CompareReport) -> dict[str, Any]:
    """Both variants with their settings, the gate and the environment, without secrets."""
    whole = compare_document(report)
    gate = report.gate
    where = read_origin(os.environ)
    config = {
        "base": whole["base"],
        "candidate": whole["candidate"],
        "tasks": list(dict.fromkeys(c.task for c in report.comparisons)),
        "gate": {
            "margin": gate.margin,
            "margin_text": gate.margin_text,
            "fail_on": gate.fail_on,
            "confidence": gate.confidence,
        },
        "environment": whole["environment"],
        "command": report.command,
        "created": report.created,
        "evalguard": report.version,
        "run_folder": report.run_folder or "",
        "commit": where.commit,
        "pipeline": where.url,
    }
    return cast("dict[str, Any]", redact_value(config))


def _run_tags(report: CompareReport) -> tuple[str, ...]:
    names = (report.gate.state, report.base.name, report.candidate.name)
    return tuple(dict.fromkeys(printable(name)[:_LONGEST_TAG] for name in names if name))


def _gate_alert(report: CompareReport) -> Alert | None:
    if report.gate.state != "regressed":
        return None
    title = printable(f"{report.candidate.name} regressed against {report.base.name}")
    return Alert(title=title, text=redacted_text(derive_meaning(report).sentence))


def _files_to_send(report: CompareReport) -> dict[str, str]:
    return {
        name: str(path.absolute())
        for name, path in _existing_files(report)
        if path.stat().st_size <= LARGEST_FILE
    }


def _files_too_large(report: CompareReport) -> list[str]:
    return [name for name, path in _existing_files(report) if path.stat().st_size > LARGEST_FILE]


def _existing_files(report: CompareReport) -> list[tuple[str, Path]]:
    if report.run_folder is None:
        return []
    folder = Path(report.run_folder)
    paths = [path for pattern in _FILE_PATTERNS for path in sorted(folder.glob(pattern))]
    return [(str(path.relative_to(folder)), path) for path in paths]
