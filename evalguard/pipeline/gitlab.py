"""A finished comparison shown on GitLab: the job's log, and a note on the merge request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.forges import gitlab_job_of, put_note
from evalguard.pipeline.commenting import Commenting, commented
from evalguard.pipeline.shown_result import shown_result
from evalguard.report.markdown import comment_marker
from evalguard.report.plain_text import printable


def show_on_gitlab(
    result: Path, *, name: str, comment: Commenting, environment: Mapping[str, str]
) -> str:
    """Show a result in the job that runs, and return what its log gets.

    Args:
        result, name, comment: as of ``show_on_github``.

    Raises:
        UsageError: ``result`` is none. A note that cannot be posted is a warning in the log: it
            takes nothing from the verdict.
    """
    job = gitlab_job_of(environment)
    shown = shown_result(result, marker=comment_marker(name))
    lines = [shown.log.rstrip("\n")]
    put = partial(put_note, job) if job.merge_request is not None else None
    lacking = None if job.token else _NO_TOKEN
    done = commented(shown, put, comment=comment, page=job.page, lacking=lacking)
    if done.address:
        lines.append(f"the note: {printable(done.address)}")
    if done.problem is not None:
        lines += [f"warning: {printable(str(done.problem))}"]
        lines += [f"hint: {printable(done.problem.hint)}"]
    return "\n".join(lines)


_NO_TOKEN = StoreError(
    "no note was posted: there is no EVALGUARD_GITLAB_TOKEN",
    hint="a project access token with the scope `api`, as a masked variable; or --comment never",
)
