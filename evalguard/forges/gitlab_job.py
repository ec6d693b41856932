"""GitlabJob: what GitLab CI tells a job in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.errors import UsageError

TOKENS = ("EVALGUARD_GITLAB_TOKEN", "GITLAB_TOKEN")
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


def gitlab_job_of(environment: Mapping[str, str]) -> GitlabJob:
    """Read the environment of a process.

    Raises:
        UsageError: a variable holds what GitLab never sets.
    """
    number = _number(environment, "CI_MERGE_REQUEST_IID")
    project = _number(environment, "CI_MERGE_REQUEST_PROJECT_ID")
    home = environment.get("CI_MERGE_REQUEST_PROJECT_URL", "")
    return GitlabJob(
        api=environment.get("CI_API_V4_URL", "").rstrip("/"),
        token=next((found for name in TOKENS if (found := environment.get(name, ""))), ""),
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
