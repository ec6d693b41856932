"""GithubJob: what GitHub Actions tells a job in its environment."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.errors import StoreError, UsageError
from evalguard.publish.rest_api import RefusedError, RestApi, has_first_line

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_HINT = "run it in a job of GitHub Actions, which sets it"


@dataclass(frozen=True, slots=True, kw_only=True)
class GithubJob:
    """A job.

    Attributes:
        repository: "owner/name"; "" outside GitHub.
        api: address of the REST API.
        token: to call it with, "" without one. Never shown.
        pull_request: number of the pull request that the job is for; None for any other event.
        page: address of the job's page; "" where it is not known.
        summary, output: files that GitHub reads when the step ends; None where there is none.
    """

    repository: str
    api: str
    token: str = field(repr=False)
    pull_request: int | None
    page: str
    summary: Path | None
    output: Path | None

    def add_summary(self, text: str) -> bool:
        """Append to the page of the job; False where there is none.

        Raises:
            StoreError: the file cannot be written.
        """
        return _append(self.summary, text + "\n")

    def add_outputs(self, values: Mapping[str, str]) -> bool:
        """Set outputs of the step, whatever their texts hold; False where nobody reads them.

        Raises:
            StoreError: the file cannot be written.
        """
        end = f"end-{secrets.token_hex(16)}"
        lines = [f"{name}<<{end}\n{value}\n{end}\n" for name, value in values.items()]
        return _append(self.output, "".join(lines))


def read_github_job(environment: Mapping[str, str]) -> GithubJob:
    """Read the environment of a process.

    Raises:
        UsageError: a variable holds what GitHub never sets.
    """
    repository = environment.get("GITHUB_REPOSITORY", "")
    if repository and not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"GITHUB_REPOSITORY is '{repository}', not OWNER/NAME", hint=_HINT)
    server = environment.get("GITHUB_SERVER_URL", "https://github.com")
    run = environment.get("GITHUB_RUN_ID", "")
    known = repository and run.isascii() and run.isdigit()
    return GithubJob(
        repository=repository,
        api=environment.get("GITHUB_API_URL", "https://api.github.com").rstrip("/"),
        token=environment.get("GITHUB_TOKEN") or environment.get("GH_TOKEN", ""),
        pull_request=_pull_request(environment.get("GITHUB_EVENT_PATH", "")),
        page=f"{server}/{repository}/actions/runs/{run}" if known else "",
        summary=_optional_path(environment.get("GITHUB_STEP_SUMMARY", "")),
        output=_optional_path(environment.get("GITHUB_OUTPUT", "")),
    )


def _optional_path(text: str) -> Path | None:
    return Path(text) if text else None


def _pull_request(event: str) -> int | None:
    """The number in the event that started the job."""
    if not event:
        return None
    try:
        content = json.loads(Path(event).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"GITHUB_EVENT_PATH cannot be read: {error}", hint=_HINT) from error
    pull_request = content.get("pull_request") if isinstance(content, dict) else None
    number = pull_request.get("number") if isinstance(pull_request, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _append(path: Path | None, text: str) -> bool:
    if path is None:
        return False
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    return True


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
        api = RestApi(job.api, _headers(job.token))
        number = _find_comment(api, f"{home}/{job.pull_request}/comments", marker)
        if number is not None:
            done = api.call("PATCH", f"{home}/comments/{number}", {"body": body})
        elif create:
            done = api.call("POST", f"{home}/{job.pull_request}/comments", {"body": body})
        else:
            return ""
    except RefusedError as error:
        raise StoreError(
            f"the comment was not posted: {error}", hint=_comment_hint(error)
        ) from error
    address = done.get("html_url", "") if isinstance(done, dict) else ""
    return address if isinstance(address, str) else ""


def _headers(token: str) -> dict[str, str]:
    return {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {token}",
        "X-GitHub-Api-Version": "2022-11-28",
    }


def _find_comment(api: RestApi, comments: str, marker: str) -> int | None:
    me = ""
    for comment in api.listed(comments, "comments"):
        if not has_first_line(comment, marker):
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


def _login(api: RestApi) -> str:
    """The token's user; an app's token has none, and no user's name is like this."""
    try:
        user = api.call("GET", "/user")
    except RefusedError:
        return "?"
    return str(user.get("login", "?")) if isinstance(user, dict) else "?"


def _comment_hint(error: RefusedError) -> str:
    if error.status in (401, 403, 404):
        return (
            "the token may not write to pull requests: give the job `permissions: "
            "{pull-requests: write}`; jobs for forks have a token that only reads"
        )
    return "the job's summary holds the same"
