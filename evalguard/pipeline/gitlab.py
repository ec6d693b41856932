"""A finished comparison shown on GitLab: the job's log, and a note on the merge request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.forges import GitlabJob, gitlab_job_of, put_note
from evalguard.pipeline.shown_result import Commenting, Shown, shown_result
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
    if comment != "never" and job.merge_request is not None:
        try:
            address = _note(job, shown, create=comment == "always" or not shown.passed)
            lines += [f"the note: {printable(address)}"] if address else []
        except StoreError as error:
            lines += [f"warning: {printable(str(error))}", f"hint: {printable(error.hint)}"]
    return "\n".join(lines)


def _note(job: GitlabJob, shown: Shown, *, create: bool) -> str:
    if not job.token:
        raise StoreError(
            "no note was posted: there is no EVALGUARD_GITLAB_TOKEN",
            hint="a project access token with the scope `api`, as a masked variable; or "
            "--comment never",
        )
    link = f"\n[The job]({job.page})\n" if job.page else ""
    return put_note(job, shown.comment + link, create=create)
