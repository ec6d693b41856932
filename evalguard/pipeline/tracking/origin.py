"""Where a comparison was run: the pull request, pipeline and commit that CI's variables name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PULL_REQUEST = re.compile(r"refs/pull/(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What belongs together, and where to look it up; "" where nothing says so.

    Attributes:
        group: the pull or merge request, else the pipeline.
        commit: what was checked out.
        url: of the pipeline.
    """

    group: str = ""
    commit: str = ""
    url: str = ""


def origin(variables: Mapping[str, str]) -> Origin:
    """Read it off the variables of GitHub Actions or GitLab CI."""
    if variables.get("GITHUB_ACTIONS"):
        return _github(variables)
    if variables.get("GITLAB_CI"):
        return _gitlab(variables)
    return Origin()


def _github(variables: Mapping[str, str]) -> Origin:
    pull_request = _PULL_REQUEST.match(variables.get("GITHUB_REF", ""))
    run = variables.get("GITHUB_RUN_ID", "")
    repository = variables.get("GITHUB_REPOSITORY", "")
    server = variables.get("GITHUB_SERVER_URL", "")
    return Origin(
        group=f"pull request {pull_request[1]}" if pull_request else f"workflow {run}",
        commit=variables.get("GITHUB_SHA", ""),
        url=f"{server}/{repository}/actions/runs/{run}" if server and repository and run else "",
    )


def _gitlab(variables: Mapping[str, str]) -> Origin:
    merge_request = variables.get("CI_MERGE_REQUEST_IID")
    pipeline = variables.get("CI_PIPELINE_ID", "")
    return Origin(
        group=f"merge request {merge_request}" if merge_request else f"pipeline {pipeline}",
        commit=variables.get("CI_COMMIT_SHA", ""),
        url=variables.get("CI_PIPELINE_URL", ""),
    )
