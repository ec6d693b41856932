"""A finished comparison, or an error, in the forms that GitHub and GitLab take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.core.redaction import redacted_text
from evalguard.core.reports.findings import without_quotes
from evalguard.errors import EvalguardError
from evalguard.report.compare_markdown import COMMENT_BYTES, failure_markdown
from evalguard.report.compare_markdown import render_markdown as markdown
from evalguard.report.compare_terminal import render_terminal as page
from evalguard.report.github_annotations import annotation_command
from evalguard.report.github_annotations import render_annotations as annotated
from evalguard.report.view.report_view import build_report_view
from evalguard.report.words.plain_text import printable
from evalguard.run.stored_run import read_stored_run, rebuild_report
from evalguard.store.result_file import read_document

_COMPARE_SCHEMA = "evalguard.compare/1"
_ERROR_SCHEMA = "evalguard.error/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownResult:
    """A result; ``annotations`` and ``outputs`` are GitHub's."""

    passed: bool
    summary: str
    comment: str
    log: str
    annotations: str
    outputs: Mapping[str, str] = field(default_factory=dict)


def show_result(result: Path, *, marker: str) -> ShownResult:
    """Read a result.

    Args:
        result: a run folder, its result.json, or what ``--json`` printed: an error, too.
        marker: hidden first line of its comment.

    Raises:
        UsageError: ``result`` is none of these.
        StoreError: it is damaged, or was changed.
    """
    content = read_document(result, schemas=(_COMPARE_SCHEMA, _ERROR_SCHEMA))
    if content["schema"] == _ERROR_SCHEMA:
        return _show_error(content, marker)
    # What --json printed lies anywhere; a run folder may have been moved.
    whole = read_stored_run(result).report if result.is_dir() else rebuild_report(result, content)
    report = without_quotes(whole)  # other people read it: a job's log too
    view = build_report_view(report)
    return ShownResult(
        passed=view.passed and view.exit_code == 0,
        summary=markdown(view),
        comment=markdown(view, most=COMMENT_BYTES, marker=marker),
        log=page(report, width=100, color=False),
        annotations=annotated(view),
        outputs={
            "state": view.state,
            "passed": "true" if view.passed and view.exit_code == 0 else "false",
            "headline": view.headline,
            "guilty": "\n".join(() if view.bisection is None else view.bisection.guilty),
            "run-folder": report.run_folder or "",
        },
    )


def _show_error(content: Mapping[str, Any], marker: str) -> ShownResult:
    """An error of the command: nothing is known about the candidate."""
    error = _read_error(content.get("error"))
    code = content.get("exit_code")
    number = code if isinstance(code, int) else EvalguardError.exit_code
    message, hint = _escape_text(str(error)), _escape_text(error.hint)
    text = failure_markdown(message, hint, exit_code=number)
    return ShownResult(
        passed=False,
        summary=text,
        comment=failure_markdown(message, hint, exit_code=number, marker=marker),
        log=f"error: {message}\nhint: {hint}" if hint else f"error: {message}",
        annotations=annotation_command("error", "evalguard: no verdict", message),
        outputs={
            "state": "failed",
            "passed": "false",
            "headline": message.split("\n", 1)[0],
            "guilty": "",
            "run-folder": "",
        },
    )


def _read_error(found: object) -> EvalguardError:
    told = found if isinstance(found, dict) else {}
    return EvalguardError(
        str(told.get("message", "it ended without a result")), hint=str(told.get("hint", ""))
    )


def _escape_text(text: str) -> str:
    return "\n".join(printable(line) for line in redacted_text(text).split("\n"))
