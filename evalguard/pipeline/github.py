"""A finished comparison shown on GitHub: summary, annotations, outputs, comment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.forges import job_of, put_comment
from evalguard.pipeline.commenting import Commenting, commented
from evalguard.pipeline.shown_result import shown_result
from evalguard.report.annotations import annotation, without_commands
from evalguard.report.markdown import comment_marker


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
    shown = shown_result(result, marker=comment_marker(name))
    lines = [without_commands(shown.log, secrets.token_hex(16)), shown.annotations.rstrip("\n")]
    job.add_summary(shown.summary)
    put = partial(put_comment, job) if job.pull_request is not None else None
    lacking = None if job.token else _NO_TOKEN
    done = commented(shown, put, comment=comment, page=job.page, lacking=lacking)
    if done.problem is not None:
        lines.append(annotation("warning", "evalguard", f"{done.problem} ({done.problem.hint})"))
    job.add_outputs({**shown.outputs, "comment-url": done.address})
    return "\n".join(lines)


_NO_TOKEN = StoreError(
    "the comment was not posted: there is no GITHUB_TOKEN",
    hint="env: {GITHUB_TOKEN: ${{ github.token }}}",
)
