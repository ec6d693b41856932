"""A finished comparison shown on GitHub or GitLab: summary, annotations or log, comment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from evalguard.comparison.stored_run import read_stored_run, rebuild_report
from evalguard.core.findings import without_quotes
from evalguard.core.redaction import redacted_text
from evalguard.errors import EvalguardError, StoreError
from evalguard.page.safe_text import printable
from evalguard.publish.annotations import annotation_command, neutralize_commands
from evalguard.publish.annotations import render_annotations as annotated
from evalguard.publish.github import put_comment, read_github_job
from evalguard.publish.gitlab import put_note, read_gitlab_job
from evalguard.report.compare_markdown import COMMENT_BYTES, comment_marker, failure_markdown
from evalguard.report.compare_markdown import render_markdown as markdown
from evalguard.report.compare_terminal import render_terminal as page
from evalguard.report.compare_view import build_report_view
from evalguard.store.run_folder import read_document

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
    details = found if isinstance(found, dict) else {}
    return EvalguardError(
        str(details.get("message", "it ended without a result")), hint=str(details.get("hint", ""))
    )


def _escape_text(text: str) -> str:
    return "\n".join(printable(line) for line in redacted_text(text).split("\n"))


CommentMode = Literal["always", "failures", "never"]


class CommentWriter(Protocol):
    """Writes a forge's comment."""

    def __call__(self, body: str, *, create: bool) -> str:
        """Update the comment, else create it; return its address, "" where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentOutcome:
    """What became of a comment.

    Attributes:
        address: "" where none was written.
        problem: why it could not be; it takes nothing from the verdict.
    """

    address: str = ""
    problem: StoreError | None = None


def post_comment(
    shown: ShownResult,
    put: CommentWriter | None,
    *,
    comment: CommentMode,
    page: str,
    lacking: StoreError | None,
) -> CommentOutcome:
    """Write the comment of a result.

    Args:
        put: None outside a pull or merge request.
        comment: "failures" creates none for a result that passes, and updates the one that is
            there.
        page: address of the job, "" where it is not known.
        lacking: why there is nothing to write with; None where there is.
    """
    if comment == "never" or put is None:
        return CommentOutcome()
    if lacking is not None:
        return CommentOutcome(problem=lacking)
    link = f"\n[The job]({page})\n" if page else ""
    try:
        return CommentOutcome(
            address=put(shown.comment + link, create=comment == "always" or not shown.passed)
        )
    except StoreError as error:
        return CommentOutcome(problem=error)


def show_on_github(
    result: Path, *, name: str, comment: CommentMode, environment: Mapping[str, str]
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
    job = read_github_job(environment)
    shown = show_result(result, marker=comment_marker(name))
    lines = [neutralize_commands(shown.log, secrets.token_hex(16)), shown.annotations.rstrip("\n")]
    job.add_summary(shown.summary)
    put = partial(put_comment, job) if job.pull_request is not None else None
    lacking = None if job.token else _NO_GITHUB_TOKEN
    done = post_comment(shown, put, comment=comment, page=job.page, lacking=lacking)
    if done.problem is not None:
        lines.append(
            annotation_command("warning", "evalguard", f"{done.problem} ({done.problem.hint})")
        )
    job.add_outputs({**shown.outputs, "comment-url": done.address})
    return "\n".join(lines)


_NO_GITHUB_TOKEN = StoreError(
    "the comment was not posted: there is no GITHUB_TOKEN",
    hint="env: {GITHUB_TOKEN: ${{ github.token }}}",
)


def show_on_gitlab(
    result: Path, *, name: str, comment: CommentMode, environment: Mapping[str, str]
) -> str:
    """Show a result in the job that runs, and return what its log gets.

    Args:
        result, name, comment: as of ``show_on_github``.

    Raises:
        UsageError: ``result`` is none. A note that cannot be posted is a warning in the log: it
            takes nothing from the verdict.
    """
    job = read_gitlab_job(environment)
    shown = show_result(result, marker=comment_marker(name))
    lines = [shown.log.rstrip("\n")]
    put = partial(put_note, job) if job.merge_request is not None else None
    lacking = None if job.token else _NO_GITLAB_TOKEN
    done = post_comment(shown, put, comment=comment, page=job.page, lacking=lacking)
    if done.address:
        lines.append(f"the note: {printable(done.address)}")
    if done.problem is not None:
        lines += [f"warning: {printable(str(done.problem))}"]
        lines += [f"hint: {printable(done.problem.hint)}"]
    return "\n".join(lines)


_NO_GITLAB_TOKEN = StoreError(
    "no note was posted: there is no EVALGUARD_GITLAB_TOKEN",
    hint="a project access token with the scope `api`, as a masked variable; or --comment never",
)
