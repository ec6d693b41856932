"""The comment of a pull request is updated, not repeated, and never another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_github import TOKEN, FakeGithub

from evalguard.errors import StoreError, UsageError
from evalguard.publish.github import put_comment, read_github_job
from evalguard.publish.rest_api import RefusedError, RestApi

MARKER = "<!-- evalguard 0123456789abcdef -->"
OTHER = "<!-- evalguard ffffffffffffffff -->"
Environment = dict[str, str]


def bodies(github: FakeGithub) -> list[str]:
    return [comment["body"] for comment in github.comments]


def test_the_first_is_created_and_the_second_updates_it(
    github: FakeGithub, environment: Environment
) -> None:
    job = read_github_job(environment)
    assert put_comment(job, f"{MARKER}\none") == "url-1"
    assert put_comment(job, f"{MARKER}\ntwo") == "url-1"
    assert put_comment(job, f"{OTHER}\nother") == "url-2"
    assert bodies(github) == [f"{MARKER}\ntwo", f"{OTHER}\nother"]


def test_a_comment_behind_many_others_is_found(
    github: FakeGithub, environment: Environment
) -> None:
    for _ in range(250):
        github.add("chat", {"login": "ada", "type": "User"})
    github.add(f"{MARKER}\r\nold")
    put_comment(read_github_job(environment), f"{MARKER}\nnew")
    assert bodies(github)[-1] == f"{MARKER}\nnew"
    assert len(github.comments) == 251


def test_somebody_elses_comment_with_our_first_line_is_left_alone(
    github: FakeGithub, environment: Environment
) -> None:
    github.add(f"{MARKER}\ncopied", {"login": "mallory", "type": "User"})
    github.add(f"quoted\n{MARKER}")
    put_comment(read_github_job(environment), f"{MARKER}\nours")
    assert bodies(github) == [f"{MARKER}\ncopied", f"quoted\n{MARKER}", f"{MARKER}\nours"]


def test_a_users_own_token_updates_that_users_comment(
    github: FakeGithub, environment: Environment
) -> None:
    github.user, github.knows_user = {"login": "ada", "type": "User"}, True
    job = read_github_job(environment)
    put_comment(job, f"{MARKER}\none")
    put_comment(job, f"{MARKER}\ntwo")
    assert bodies(github) == [f"{MARKER}\ntwo"]


def test_none_is_created_where_only_an_update_was_asked_for(
    github: FakeGithub, environment: Environment
) -> None:
    job = read_github_job(environment)
    assert put_comment(job, f"{MARKER}\none", create=False) == ""
    assert bodies(github) == []
    github.add(f"{MARKER}\nold")
    assert put_comment(job, f"{MARKER}\nnew", create=False) == "url-1"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_refusal_is_tried_again(
    github: FakeGithub, environment: Environment, status: int
) -> None:
    github.failures = [(status, "0"), (status, "0")]
    assert put_comment(read_github_job(environment), f"{MARKER}\none") == "url-1"
    assert bodies(github) == [f"{MARKER}\none"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_that_may_not_write_is_told_what_it_needs(
    github: FakeGithub, environment: Environment, status: int
) -> None:
    github.failures = [(status, "")]
    with pytest.raises(StoreError, match=f"HTTP {status} .*: not now") as refused:
        put_comment(read_github_job(environment), MARKER)
    assert "pull-requests: write" in refused.value.hint
    assert len(github.asked) == 1
    assert TOKEN not in str(refused.value)


def test_a_redirect_does_not_get_the_token(github: FakeGithub, environment: Environment) -> None:
    github.redirect = f"{github.address}/elsewhere"
    with pytest.raises(StoreError, match="HTTP 302"):
        put_comment(read_github_job(environment), MARKER)
    assert len(github.asked) == 1


def test_nobody_listens(environment: Environment) -> None:
    api = RestApi("http://127.0.0.1:9", {"Authorization": TOKEN}, wait=0.0)
    with pytest.raises(RefusedError, match="no answer"):
        api.call("GET", "/user")


def test_the_token_is_not_sent_without_tls() -> None:
    with pytest.raises(RefusedError, match="not https"):
        RestApi("http://github.example/api", {"Authorization": TOKEN})


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        ({"pull_request": {"number": 3}}, 3),
        ({"ref": "refs/heads/main"}, None),
        ({"pull_request": {"number": True}}, None),
        ([], None),
    ],
)
def test_the_pull_request_is_that_of_the_event(
    tmp_path: Path, event: object, wanted: int | None
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event))
    assert read_github_job({"GITHUB_EVENT_PATH": str(path)}).pull_request == wanted


def test_what_github_never_sets_is_refused(tmp_path: Path) -> None:
    for environment in ({"GITHUB_REPOSITORY": "a/b/../c"}, {"GITHUB_EVENT_PATH": str(tmp_path)}):
        with pytest.raises(UsageError, match="GITHUB_"):
            read_github_job(environment)


def test_outside_github_a_job_has_nothing() -> None:
    job = read_github_job({})
    assert (job.repository, job.pull_request, job.page) == ("", None, "")
    assert not job.add_summary("x")
    assert not job.add_outputs({"a": "b"})


def test_a_token_is_not_shown(environment: Environment) -> None:
    assert TOKEN not in repr(read_github_job(environment))


def test_outputs_of_any_text_stay_one_value(environment: Environment) -> None:
    job = read_github_job(environment)
    job.add_outputs({"a": "one\nend\nb=injected", "c": ""})
    assert outputs(environment) == {"a": "one\nend\nb=injected", "c": ""}


def outputs(environment: Environment) -> dict[str, str]:
    """Read the file of outputs as the runner does."""
    lines = iter(Path(environment["GITHUB_OUTPUT"]).read_text().splitlines())
    found = {}
    for line in lines:
        name, end = line.split("<<")
        value = []
        for inner in lines:
            if inner == end:
                break
            value.append(inner)
        found[name] = "\n".join(value)
    return found
