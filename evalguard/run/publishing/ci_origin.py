"""Where a comparison was run: the pull request, pipeline and commit that CI's variables name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PULL_REQUEST = re.compile(r"refs/pull/(\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CiOrigin:
    """What belongs together, and where to look it up; "" where nothing says so.

    Attributes:
        group: the pull or merge request, else the pipeline.
        commit: what was checked out.
        url: of the pipeline.
    """

    group: str = ""
    commit: str = ""
    url: str = ""


def read_origin(variables: Mapping[str, str]) -> CiOrigin:
    """Read it off the variables of GitHub Actions or GitLab CI."""
    if variables.get("GITHUB_ACTIONS"):
        return _github_origin(variables)
    if variables.get("GITLAB_CI"):
        return _gitlab_origin(variables)
    return CiOrigin()


def _github_origin(variables: Mapping[str, str]) -> CiOrigin:
    pull_request = _PULL_REQUEST.match(variables.get("GITHUB_REF", ""))
    run = variables.get("GITHUB_RUN_ID", "")
    repository = variables.get("GITHUB_REPOSITORY", "")
    server = variables.get("GITHUB_SERVER_URL", "")
    return CiOrigin(
        group=f"pull request {pull_request[1]}" if pull_request else f"workflow {run}",
        commit=variables.get("GITHUB_SHA", ""),
        url=f"{server}/{repository}/actions/runs/{run}" if server and repository and run else "",
    )


def _gitlab_origin(variables: Mapping[str, str]) -> CiOrigin:
    merge_request = variables.get("CI_MERGE_REQUEST_IID")
    pipeline = variables.get("CI_PIPELINE_ID", "")
    return CiOrigin(
        group=f"merge request {merge_request}" if merge_request else f"pipeline {pipeline}",
        commit=variables.get("CI_COMMIT_SHA", ""),
        url=variables.get("CI_PIPELINE_URL", ""),
    )
