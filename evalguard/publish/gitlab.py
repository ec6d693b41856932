"""GitlabJob: what GitLab CI tells a job in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.errors import StoreError, UsageError
from evalguard.publish.rest_api import RefusedError, RestApi, has_first_line

TOKEN_VARIABLES = ("EVALGUARD_GITLAB_TOKEN", "GITLAB_TOKEN")
"""Variables with the token, the first that is set counts: a job's own may write no notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitlabJob:
    """A job.

    Attributes:
        api: address of the REST API; "" outside GitLab.
        token: to call it with, "" without one. Never shown.
        project: number of the project that the merge request goes to; of a fork it is another one
            than the job's.
        merge_request: its number in that project; None in any other pipeline.
        request_page, page: addresses of the merge request and of the job; "" where not known.
    """

    api: str
    token: str = field(repr=False)
    project: int
    merge_request: int | None
    request_page: str
    page: str


def read_gitlab_job(environment: Mapping[str, str]) -> GitlabJob:
    """Read the environment of a process.

    Raises:
        UsageError: a variable holds what GitLab never sets.
    """
    number = _number(environment, "CI_MERGE_REQUEST_IID")
    project = _number(environment, "CI_MERGE_REQUEST_PROJECT_ID")
    home = environment.get("CI_MERGE_REQUEST_PROJECT_URL", "")
    return GitlabJob(
        api=environment.get("CI_API_V4_URL", "").rstrip("/"),
        token=next((token for name in TOKEN_VARIABLES if (token := environment.get(name, ""))), ""),
        project=project or 0,
        merge_request=number if project else None,
        request_page=f"{home}/-/merge_requests/{number}" if home and number else "",
        page=environment.get("CI_JOB_URL", ""),
    )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"{name} is '{text}', not a number", hint="run it in a job of GitLab CI, which sets it"
        )
    return int(text)


def put_note(job: GitlabJob, body: str, *, create: bool = True) -> str:
    """Update the note whose first line is that of ``body``; where there is none, create it.

    Only a note that this token's own user wrote is updated: the hidden line can be copied.

    Args:
        create: False leaves a merge request without the note as it is.

    Returns:
        The address of the note; "" where there is none and none was created.

    Raises:
        StoreError: it cannot be posted; the hint says what the token needs.
    """
    notes = f"/projects/{job.project}/merge_requests/{job.merge_request}/notes"
    try:
        api = RestApi(job.api, {"PRIVATE-TOKEN": job.token})
        number = _find_note(api, notes, body.split("\n", 1)[0])
        if number is not None:
            api.call("PUT", f"{notes}/{number}", {"body": body})
        elif create:
            done = api.call("POST", notes, {"body": body})
            number = done.get("id") if isinstance(done, dict) else None
        else:
            return ""
    except RefusedError as error:
        raise StoreError(f"the note was not posted: {error}", hint=_note_hint(error)) from error
    known = job.request_page and isinstance(number, int)
    return f"{job.request_page}#note_{number}" if known else ""


def _find_note(api: RestApi, notes: str, marker: str) -> int | None:
    me = _user(api)
    for note in api.listed(f"{notes}?sort=asc", "notes"):
        number, author = note.get("id"), note.get("author")
        ours = isinstance(author, dict) and author.get("id") == me
        if ours and isinstance(number, int) and has_first_line(note, marker):
            return number
    return None


def _user(api: RestApi) -> int:
    """The number of the token's user; a project's token has one of its own."""
    user = api.call("GET", "/user")
    number = user.get("id") if isinstance(user, dict) else None
    if not isinstance(number, int):
        raise RefusedError("whose token it is, is not known")
    return number


def _note_hint(error: RefusedError) -> str:
    if error.status in (401, 403, 404):
        return (
            "the token may not write notes: give the job a project access token with the scope "
            "`api` and the role Reporter or above, as masked variable EVALGUARD_GITLAB_TOKEN"
        )
    return "the job's log and its artifacts hold the same"
