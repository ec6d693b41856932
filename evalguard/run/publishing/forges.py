"""A finished comparison shown on GitHub or GitLab: summary, annotations or log, comment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.integrations.github import put_comment, read_github_job
from evalguard.integrations.gitlab import put_note, read_gitlab_job
from evalguard.report.compare_markdown import comment_marker
from evalguard.report.github_annotations import annotation_command, neutralize_commands
from evalguard.report.words.plain_text import printable
from evalguard.run.publishing.forge_comment import CommentMode, post_comment
from evalguard.run.publishing.shown_result import show_result


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
