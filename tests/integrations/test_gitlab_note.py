"""The note of a merge request is updated, not repeated, never another's; the token stays here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_gitlab import GITLAB_TOKEN, FakeGitlab, fake_gitlab

from evalguard.core.redaction import redacted_text
from evalguard.errors import StoreError, UsageError
from evalguard.publish.forges import show_on_gitlab
from evalguard.publish.gitlab import put_note, read_gitlab_job

MARKER = "<!-- evalguard 0123456789abcdef -->"
OTHER = "<!-- evalguard ffffffffffffffff -->"
Environment = dict[str, str]


@pytest.fixture
def gitlab() -> Iterator[FakeGitlab]:
    with fake_gitlab() as running:
        yield running


@pytest.fixture
def job(gitlab: FakeGitlab) -> Environment:
    """What GitLab sets for a job of merge request 7 of project 42, which comes from a fork."""
    return {
        "CI_API_V4_URL": gitlab.address,
        "CI_JOB_URL": "https://gitlab.example/fork/repo/-/jobs/9",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_PROJECT_URL": "https://gitlab.example/org/repo",
        "CI_PROJECT_ID": "43",
        "EVALGUARD_GITLAB_TOKEN": GITLAB_TOKEN,
    }


def bodies(gitlab: FakeGitlab) -> list[str]:
    return [note["body"] for note in gitlab.notes]


def test_the_first_is_created_and_the_second_updates_it(
    gitlab: FakeGitlab, job: Environment
) -> None:
    made = read_gitlab_job(job)
    place = "https://gitlab.example/org/repo/-/merge_requests/7#note_1000"
    assert put_note(made, f"{MARKER}\none") == place
    assert put_note(made, f"{MARKER}\ntwo") == place
    assert put_note(made, f"{OTHER}\nother").endswith("#note_1001")
    assert bodies(gitlab) == [f"{MARKER}\ntwo", f"{OTHER}\nother"]


def test_a_note_behind_many_others_is_found(gitlab: FakeGitlab, job: Environment) -> None:
    for number in range(250):
        gitlab.add("added 1 commit", 9, system=number % 2 == 0)
    gitlab.add(f"{MARKER}\r\nold")
    put_note(read_gitlab_job(job), f"{MARKER}\nnew")
    assert bodies(gitlab)[-1] == f"{MARKER}\nnew"
    assert len(gitlab.notes) == 251


def test_somebody_elses_note_with_our_first_line_is_left_alone(
    gitlab: FakeGitlab, job: Environment
) -> None:
    gitlab.add(f"{MARKER}\ncopied", 9)
    gitlab.add(f"quoted\n{MARKER}")
    put_note(read_gitlab_job(job), f"{MARKER}\nours")
    assert bodies(gitlab) == [f"{MARKER}\ncopied", f"quoted\n{MARKER}", f"{MARKER}\nours"]


def test_none_is_created_where_only_an_update_was_asked_for(
    gitlab: FakeGitlab, job: Environment
) -> None:
    made = read_gitlab_job(job)
    assert put_note(made, f"{MARKER}\none", create=False) == ""
    gitlab.add(f"{MARKER}\nold")
    assert put_note(made, f"{MARKER}\nnew", create=False).endswith("#note_1000")
    assert bodies(gitlab) == [f"{MARKER}\nnew"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_refusal_is_tried_again(
    gitlab: FakeGitlab, job: Environment, status: int
) -> None:
    gitlab.failures = [status, status]
    assert put_note(read_gitlab_job(job), f"{MARKER}\none")
    assert bodies(gitlab) == [f"{MARKER}\none"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_that_may_not_write_is_told_what_it_needs(
    gitlab: FakeGitlab, job: Environment, status: int
) -> None:
    gitlab.failures = [status]
    with pytest.raises(StoreError, match=f"HTTP {status} .*not now") as refused:
        put_note(read_gitlab_job(job), MARKER)
    assert "scope `api`" in refused.value.hint
    assert GITLAB_TOKEN not in str(refused.value)


def test_the_token_is_never_shown_and_never_sent_without_tls(job: Environment) -> None:
    open_job = read_gitlab_job({**job, "CI_API_V4_URL": "http://gitlab.example/api/v4"})
    assert GITLAB_TOKEN not in repr(open_job)
    assert redacted_text(f"token {GITLAB_TOKEN} in a text") == "token *** in a text"
    with pytest.raises(StoreError, match="not https"):
        put_note(open_job, MARKER)


def test_what_gitlab_never_sets_is_refused_and_other_pipelines_have_no_note(
    job: Environment,
) -> None:
    with pytest.raises(UsageError, match=r"CI_MERGE_REQUEST_IID is '7/\.\./8'"):
        read_gitlab_job({**job, "CI_MERGE_REQUEST_IID": "7/../8"})
    assert read_gitlab_job({}).merge_request is None
    assert read_gitlab_job({**job, "CI_MERGE_REQUEST_IID": ""}).merge_request is None


def failed(tmp_path: Path, message: str) -> Path:
    """What ``--json`` prints of a comparison that failed."""
    error = {"message": message, "hint": "another"}
    path = tmp_path / "evalguard.json"
    path.write_text(json.dumps({"schema": "evalguard.error/1", "exit_code": 3, "error": error}))
    return path


def shown(path: Path, job: Environment, **options: Any) -> str:
    wanted = {"name": "a pair", "comment": "always", **options}
    return show_on_gitlab(path, environment=job, **wanted)


def test_the_log_says_where_the_note_is(
    gitlab: FakeGitlab, job: Environment, tmp_path: Path
) -> None:
    log = shown(failed(tmp_path, "there is no model"), job)
    assert log.splitlines() == [
        "error: there is no model",
        "hint: another",
        "the note: https://gitlab.example/org/repo/-/merge_requests/7#note_1000",
    ]
    (body,) = bodies(gitlab)
    assert "[The job](https://gitlab.example/fork/repo/-/jobs/9)" in body
    shown(failed(tmp_path, "and still none"), job)
    assert len(gitlab.notes) == 1


def test_no_text_of_a_model_is_an_order_to_gitlab(
    gitlab: FakeGitlab, job: Environment, tmp_path: Path
) -> None:
    """A line that begins with /merge or /close is one, in notes that come by its API, too."""
    shown(
        failed(tmp_path, "/merge\n  /close\n/srv/a: @all ~bug %v1 !7\x1b[0Ksection_start:0:x"), job
    )
    (body,) = bodies(gitlab)
    assert not [line for line in body.splitlines() if line.lstrip().startswith("/")]
    for order in ("@all", "~bug", "%v1", "!7", "\x1b"):
        assert order not in body


def test_without_a_token_or_a_server_the_log_says_so_and_the_verdict_stands(
    gitlab: FakeGitlab, job: Environment, tmp_path: Path
) -> None:
    path = failed(tmp_path, "no model")
    unknown = shown(path, {**job, "EVALGUARD_GITLAB_TOKEN": ""})
    assert "warning: no note was posted: there is no EVALGUARD_GITLAB_TOKEN" in unknown
    wrong = shown(path, {**job, "EVALGUARD_GITLAB_TOKEN": "glpat-expired"})
    assert "warning: the note was not posted: HTTP 401" in wrong
    assert "glpat-expired" not in wrong
    assert gitlab.notes == []
    assert "warning" not in shown(path, {**job, "EVALGUARD_GITLAB_TOKEN": ""}, comment="never")


def test_the_command_ends_with_0(gitlab: FakeGitlab, job: Environment, tmp_path: Path) -> None:
    words = ["-m", "evalguard", "gitlab", str(failed(tmp_path, "no model")), "--name", "x"]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **job},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, len(gitlab.notes)) == (0, 1), done.stderr
