"""A finished comparison as a tracked run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from evalguard.compare_report import CompareReport
from evalguard.pipeline.tracking.numbers import numbers
from evalguard.pipeline.tracking.origin import origin
from evalguard.pipeline.tracking.tables import tables
from evalguard.redaction import redacted, redacted_text
from evalguard.report.contract import document
from evalguard.report.html.forest_page import forest_page
from evalguard.report.plain_text import printable
from evalguard.report.sentence import meaning
from evalguard.tracked_run import Alert, JobType, TrackedRun

# What people look into later; the tokens of all documents may be gigabytes.
_FILES = ("result.json", "report.html", "junit.xml", "samples/*.parquet")
_LARGEST_FILE = 100_000_000
_LONGEST_TAG = 64


def tracked_run(
    report: CompareReport, *, job_type: JobType | None = None, group: str | None = None
) -> TrackedRun:
    """Return what is sent of a report.

    Args:
        job_type: None: "bisect" where it holds a bisection, else "compare".
        group: None: the pull request or pipeline that CI's variables name.
    """
    found, files = numbers(report), _files(report)
    left_out = _too_large(report)
    summary = {
        **found.words,
        "state": report.gate.state,
        "sentence": redacted_text(meaning(report).sentence),
        **({"bisect/status": report.bisect.status} if report.bisect else {}),
        **({"files left out": ", ".join(left_out)} if left_out else {}),
    }
    return TrackedRun(
        name=printable(f"{report.base.name} vs {report.candidate.name}"),
        job_type=job_type or ("bisect" if report.bisect else "compare"),
        group=origin(os.environ).group if group is None else group,
        tags=_tags(report),
        config=_config(report),
        scalars=found.scalars,
        summary=summary,
        tables=tables(report),
        pages={"forest": forest_page(report)} if report.comparisons else {},
        files=files,
        alert=_alert(report),
    )


def _config(report: CompareReport) -> dict[str, Any]:
    """Both variants with their settings, the gate and the environment, without secrets."""
    whole = document(report)
    gate = report.gate
    where = origin(os.environ)
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
    return cast("dict[str, Any]", redacted(config))


def _tags(report: CompareReport) -> tuple[str, ...]:
    names = (report.gate.state, report.base.name, report.candidate.name)
    return tuple(dict.fromkeys(printable(name)[:_LONGEST_TAG] for name in names if name))


def _alert(report: CompareReport) -> Alert | None:
    if report.gate.state != "regressed":
        return None
    title = printable(f"{report.candidate.name} regressed against {report.base.name}")
    return Alert(title=title, text=redacted_text(meaning(report).sentence))


def _files(report: CompareReport) -> dict[str, str]:
    return {
        name: str(path.absolute())
        for name, path in _there(report)
        if path.stat().st_size <= _LARGEST_FILE
    }


def _too_large(report: CompareReport) -> list[str]:
    return [name for name, path in _there(report) if path.stat().st_size > _LARGEST_FILE]


def _there(report: CompareReport) -> list[tuple[str, Path]]:
    if report.run_folder is None:
        return []
    folder = Path(report.run_folder)
    paths = [path for pattern in _FILES for path in sorted(folder.glob(pattern))]
    return [(str(path.relative_to(folder)), path) for path in paths]
