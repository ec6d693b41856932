"""The comment of a pull request: found by its hidden first line, updated, else created."""

from __future__ import annotations

from evalguard.errors import StoreError
from evalguard.forges.github_job import GithubJob
from evalguard.forges.rest import Api, RefusedError, begins_with


def put_comment(job: GithubJob, body: str, *, create: bool = True) -> str:
    """Update the comment whose first line is that of ``body``; where there is none, create it.

    Only a comment that this token's own user, or an app, wrote is updated: the hidden line can be
    copied by anybody.

    Args:
        create: False leaves a pull request without the comment as it is.

    Returns:
        The address of the comment; "" where there is none and none was created.

    Raises:
        StoreError: it cannot be posted; the hint says what the token needs.
    """
    marker = body.split("\n", 1)[0]
    home = f"/repos/{job.repository}/issues"
    try:
        api = Api(job.api, _headers(job.token))
        number = _find(api, f"{home}/{job.pull_request}/comments", marker)
        if number is not None:
            done = api.call("PATCH", f"{home}/comments/{number}", {"body": body})
        elif create:
            done = api.call("POST", f"{home}/{job.pull_request}/comments", {"body": body})
        else:
            return ""
    except RefusedError as error:
        raise StoreError(f"the comment was not posted: {error}", hint=_hint(error)) from error
    address = done.get("html_url", "") if isinstance(done, dict) else ""
    return address if isinstance(address, str) else ""


def _headers(token: str) -> dict[str, str]:
    return {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {token}",
        "X-GitHub-Api-Version": "2022-11-28",
    }


def _find(api: Api, comments: str, marker: str) -> int | None:
    me = ""
    for comment in api.listed(comments, "comments"):
        if not begins_with(comment, marker):
            continue
        author = comment.get("user") or {}
        if author.get("type") != "Bot":
            me = me or _login(api)
            if author.get("login") != me:
                continue
        number = comment.get("id")
        if isinstance(number, int):
            return number
    return None


def _login(api: Api) -> str:
    """The token's user; an app's token has none, and no user's name is like this."""
    try:
        found = api.call("GET", "/user")
    except RefusedError:
        return "?"
    return str(found.get("login", "?")) if isinstance(found, dict) else "?"


def _hint(error: RefusedError) -> str:
    if error.status in (401, 403, 404):
        return (
            "the token may not write to pull requests: give the job `permissions: "
            "{pull-requests: write}`; jobs for forks have a token that only reads"
        )
    return "the job's summary holds the same"
