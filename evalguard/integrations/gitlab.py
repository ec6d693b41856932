"""Calls of a REST API: bounded in time, tried again where that helps, the token kept at home."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from evalguard.errors import StoreError, UsageError

_TIMEOUT = 20.0
_TRIES = 3
_LONGEST_WAIT = 20.0
_MOST_BYTES = 16_000_000
_PAGE = 100
_MOST_PAGES = 50
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RefusedError(Exception):
    """The API did not do it; ``status`` is that of HTTP, 0 where none came."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RestApi:
    """A REST API that answers in JSON."""

    def __init__(self, address: str, headers: Mapping[str, str], *, wait: float = 1.0) -> None:
        """Keep what every request needs.

        Args:
            headers: of every request; the token is one of them.
            wait: seconds before the second try, doubled before the third.

        Raises:
            RefusedError: the token would travel in the open.
        """
        parts = urlsplit(address)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise RefusedError(f"{address} is not https: the token is not sent there")
        self._address, self._headers, self._wait = address, dict(headers), wait
        self._opener = urllib.request.build_opener(_NoRedirect)

    def call(self, method: str, path: str, content: object = None) -> Any:
        """Return the answer as plain data.

        Raises:
            RefusedError: no answer in time, one that says no, or one that is not JSON.
        """
        for left in reversed(range(_TRIES)):
            try:
                return self._once(method, path, content)
            except urllib.error.HTTPError as error:
                again = error.code == 429 or error.code >= 500
                if not left or not again:
                    why = (
                        f"HTTP {error.code} from {method} "
                        f"{path.split('?')[0]}{_error_reason(error)}"
                    )
                    raise RefusedError(why, error.code) from error
                time.sleep(self._pause(error.headers, left))
            except (OSError, HTTPException, ValueError) as error:
                # Whether a comment was created is not known then: creating is not tried again.
                if not left or method == "POST":
                    raise RefusedError(f"no answer from {self._address}: {error}") from error
                time.sleep(self._pause(None, left))
        raise AssertionError("the last try returns or raises")

    def listed(self, path: str, what: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page.

        Args:
            path: with what it is asked for, if there is any.
            what: it is a list of, for the error.

        Raises:
            RefusedError: as of ``call``; what comes is not a list.
        """
        more = "&" if "?" in path else "?"
        for page in range(1, _MOST_PAGES + 1):
            found = self.call("GET", f"{path}{more}per_page={_PAGE}&page={page}")
            if not isinstance(found, list):
                raise RefusedError(f"the list of {what} is none")
            yield from (one for one in found if isinstance(one, dict))
            if len(found) < _PAGE:
                return

    def _once(self, method: str, path: str, content: object) -> Any:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "User-Agent": "evalguard",
            },
        )
        with self._opener.open(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read(_MOST_BYTES))

    def _pause(self, headers: Message | None, left: int) -> float:
        asked = "" if headers is None else headers.get("Retry-After", "")
        if asked.isascii() and asked.isdigit():
            return min(float(asked), _LONGEST_WAIT)
        return float(self._wait * 2 ** (_TRIES - 1 - left))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Would send the token to wherever the answer points."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def _error_reason(error: urllib.error.HTTPError) -> str:
    """What the API says, in one line."""
    try:
        said = json.loads(error.read(100_000)).get("message", "")
    except (OSError, HTTPException, ValueError, AttributeError):
        return ""
    return f": {' '.join(str(said).split())[:300]}" if said else ""


def has_first_line(found: Mapping[str, Any], marker: str) -> bool:
    """Whether the first line of a comment or a note is this one."""
    body = found.get("body")
    return isinstance(body, str) and body.split("\n", 1)[0].rstrip("\r") == marker


# GitlabJob: what GitLab CI tells a job in its environment.


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
        token=next((found for name in TOKEN_VARIABLES if (found := environment.get(name, ""))), ""),
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


# The note of a merge request: found by its hidden first line, updated, else created.


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
    found = api.call("GET", "/user")
    number = found.get("id") if isinstance(found, dict) else None
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
