"""A finished comparison shown on GitHub: summary, annotations, outputs, comment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evalguard.errors import EvalguardError, StoreError
from evalguard.github import GithubJob, job_of, put_comment
from evalguard.pipeline.stored_run import stored_run
from evalguard.redaction import redacted_text
from evalguard.report.annotations import annotation, without_commands
from evalguard.report.annotations import render as annotated
from evalguard.report.markdown import COMMENT_BYTES, comment_marker, failure_markdown
from evalguard.report.markdown import render as markdown
from evalguard.report.plain_text import printable
from evalguard.report.stored import read_report
from evalguard.report.terminal import render as page
from evalguard.report.view import report_view
from evalguard.store import read_document

Commenting = Literal["always", "failures", "never"]

_COMPARE = "evalguard.compare/1"
_ERROR = "evalguard.error/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A result in the forms that GitHub takes. ``log`` holds no command."""

    passed: bool
    summary: str
    comment: str
    log: str
    annotations: str
    outputs: Mapping[str, str] = field(default_factory=dict)


def show_on_github(
    result: Path, *, name: str, comment: Commenting, environment: Mapping[str, str]
) -> str:
    """Show a result in the job that runs, and return what its log gets.

    Args:
        result: a run folder, its result.json, or what ``--json`` printed: an error, too.
        name: tells the comments of several comparisons of one pull request apart.
        comment: on a pull request; "failures" creates none for a result that passes, and updates
            the one that is there.

    Raises:
        UsageError: ``result`` is none of these.
        StoreError: the summary or the outputs cannot be written. A comment that cannot be posted
            is a warning in the log: it takes nothing from the verdict.
    """
    job = job_of(environment)
    shown = _shown(result, marker=comment_marker(name))
    lines = [without_commands(shown.log, secrets.token_hex(16)), shown.annotations.rstrip("\n")]
    job.add_summary(shown.summary)
    address = ""
    if comment != "never" and job.pull_request is not None:
        try:
            address = _comment(job, shown, create=comment == "always" or not shown.passed)
        except StoreError as error:
            lines.append(annotation("warning", "evalguard", f"{error} ({error.hint})"))
    job.add_outputs({**shown.outputs, "comment-url": address})
    return "\n".join(lines)


def _comment(job: GithubJob, shown: _Shown, *, create: bool) -> str:
    if not job.token:
        raise StoreError(
            "the comment was not posted: there is no GITHUB_TOKEN",
            hint="env: {GITHUB_TOKEN: ${{ github.token }}}",
        )
    link = f"\n[The job]({job.page})\n" if job.page else ""
    return put_comment(job, shown.comment + link, create=create)


def _shown(result: Path, *, marker: str) -> _Shown:
    content = read_document(result, schemas=(_COMPARE, _ERROR))
    if content["schema"] == _ERROR:
        return _failed(content, marker)
    # What --json printed lies anywhere; a run folder may have been moved.
    report = stored_run(result).report if result.is_dir() else read_report(content)
    view = report_view(report)
    return _Shown(
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


def _failed(content: Mapping[str, Any], marker: str) -> _Shown:
    """An error of the command: nothing is known about the candidate."""
    error = _as_error(content.get("error"))
    code = content.get("exit_code")
    number = code if isinstance(code, int) else EvalguardError.exit_code
    message, hint = _harmless(str(error)), _harmless(error.hint)
    text = failure_markdown(message, hint, exit_code=number)
    return _Shown(
        passed=False,
        summary=text,
        comment=failure_markdown(message, hint, exit_code=number, marker=marker),
        log=f"error: {message}\nhint: {hint}" if hint else f"error: {message}",
        annotations=annotation("error", "evalguard: no verdict", message),
        outputs={
            "state": "failed",
            "passed": "false",
            "headline": message.split("\n", 1)[0],
            "guilty": "",
            "run-folder": "",
        },
    )


def _as_error(found: object) -> EvalguardError:
    told = found if isinstance(found, dict) else {}
    return EvalguardError(
        str(told.get("message", "it ended without a result")), hint=str(told.get("hint", ""))
    )


def _harmless(text: str) -> str:
    return "\n".join(printable(line) for line in redacted_text(text).split("\n"))
