"""The note of a merge request: found by its hidden first line, updated, else created."""

from __future__ import annotations

from evalguard.errors import StoreError
from evalguard.forges.gitlab_job import GitlabJob
from evalguard.forges.rest import Api, RefusedError, begins_with


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
        api = Api(job.api, {"PRIVATE-TOKEN": job.token})
        number = _find(api, notes, body.split("\n", 1)[0])
        if number is not None:
            api.call("PUT", f"{notes}/{number}", {"body": body})
        elif create:
            done = api.call("POST", notes, {"body": body})
            number = done.get("id") if isinstance(done, dict) else None
        else:
            return ""
    except RefusedError as error:
        raise StoreError(f"the note was not posted: {error}", hint=_hint(error)) from error
    known = job.request_page and isinstance(number, int)
    return f"{job.request_page}#note_{number}" if known else ""


def _find(api: Api, notes: str, marker: str) -> int | None:
    me = _user(api)
    for note in api.listed(f"{notes}?sort=asc", "notes"):
        number, author = note.get("id"), note.get("author")
        ours = isinstance(author, dict) and author.get("id") == me
        if ours and isinstance(number, int) and begins_with(note, marker):
            return number
    return None


def _user(api: Api) -> int:
    """The number of the token's user; a project's token has one of its own."""
    found = api.call("GET", "/user")
    number = found.get("id") if isinstance(found, dict) else None
    if not isinstance(number, int):
        raise RefusedError("whose token it is, is not known")
    return number


def _hint(error: RefusedError) -> str:
    if error.status in (401, 403, 404):
        return (
            "the token may not write notes: give the job a project access token with the scope "
            "`api` and the role Reporter or above, as masked variable EVALGUARD_GITLAB_TOKEN"
        )
    return "the job's log and its artifacts hold the same"
