"""``evalguard github``: a stored result, or an error, shown in a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_github import TOKEN, FakeGithub
from test_comments import outputs

from evalguard.errors import UsageError
from evalguard.publish.forges import show_on_github

HOSTILE = "::set-env name=PATH::/evil\n@everyone <script>"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """What ``--json`` prints of a regression whose candidate has a hostile name."""
    from evalguard.core.compare_report import CompareReport, RunIdentity
    from evalguard.core.comparison import Comparison
    from evalguard.core.gate import Gate
    from evalguard.report.compare_document import compare_document

    one = Comparison(
        task="lambada", filter="none", metric="perplexity", higher_is_better=False, n=500,
        n_used=500, base=4.1, base_stderr=0.09, candidate=4.3, candidate_stderr=0.09, sigma=2.2,
        sigma_interval=(2.0, 2.4), paired_stderr=0.009, p_value=1e-9, method="paired-t",
        confidence=0.95, false_alarm_probability=1e-9, outcome="regressed", significant=True,
        certain=True, bit_identical=False, reason=f"worse. {HOSTILE}",
    )  # fmt: skip
    shown = CompareReport(
        base=RunIdentity(name="orig", digest="1"),
        candidate=RunIdentity(name=HOSTILE, digest="2"),
        comparisons=(one,),
        gate=Gate().judge((one,)),
        exit_code=1,
        created="2026-11-20T11:00:00Z",
        run_folder="reports/run",
    )
    path = tmp_path / "evalguard.json"
    path.write_text(json.dumps(compare_document(shown)))
    return path


def show(path: Path, environment: dict[str, str], **options: Any) -> str:
    wanted = {"name": "a pair", "comment": "always", **options}
    return show_on_github(path, environment=environment, **wanted)


def test_summary_comment_outputs_and_annotations_of_a_regression(
    github: FakeGithub, environment: dict[str, str], result: Path
) -> None:
    log = show(result, environment)
    summary = Path(environment["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("### ❌ REGRESSED: 1 regressed")
    (comment,) = github.comments
    assert comment["body"].startswith("<!-- evalguard ")
    assert "[The job](https://github.example/org/repo/actions/runs/123)" in comment["body"]
    assert outputs(environment) == {
        "state": "regressed",
        "passed": "false",
        "headline": "REGRESSED: 1 regressed",
        "guilty": "",
        "run-folder": "reports/run",
        "comment-url": "url-1",
    }
    assert "::error title=lambada perplexity%3A regressed::" in log
    for text in (summary, comment["body"]):
        assert "<script>" not in text
        assert "@everyone" not in text


def test_no_text_of_a_model_is_a_command_in_the_log(
    environment: dict[str, str], result: Path
) -> None:
    lines = show(result, environment).splitlines()
    stop = lines[0].removeprefix("::stop-commands::")
    inside = lines.index(f"::{stop}::")
    assert len(stop) == 32
    for line in lines[inside + 1 :]:
        assert line.startswith(("::error title=", "::warning title="))
    assert lines[0] != show(result, environment).splitlines()[0]


def test_a_second_run_updates_the_comment_and_another_name_has_its_own(
    github: FakeGithub, environment: dict[str, str], result: Path
) -> None:
    for name in ("a", "a", "b"):
        show(result, environment, name=name)
    assert len(github.comments) == 2


def test_a_comment_that_cannot_be_posted_is_a_warning(
    github: FakeGithub, environment: dict[str, str], result: Path
) -> None:
    github.failures = [(403, "")]
    log = show(result, environment)
    assert "::warning title=evalguard::the comment was not posted: HTTP 403" in log
    assert outputs(environment)["state"] == "regressed"
    environment["GITHUB_TOKEN"] = ""
    assert "there is no GITHUB_TOKEN" in show(result, environment)


@pytest.mark.parametrize("comment", ["never", "always"])
def test_no_comment_where_none_is_wanted_or_no_pull_request_is(
    github: FakeGithub, environment: dict[str, str], result: Path, comment: str
) -> None:
    if comment == "always":
        del environment["GITHUB_EVENT_PATH"]
    show(result, environment, comment=comment)
    assert github.asked == []


def test_an_error_is_shown_as_no_verdict(
    github: FakeGithub, environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "error.json"
    error = {"type": "X", "message": f"no model\n{HOSTILE} {TOKEN}", "hint": "give a path"}
    path.write_text(json.dumps({"schema": "evalguard.error/1", "error": error, "exit_code": 2}))
    log = show(path, environment, comment="failures")
    assert "No verdict" in github.comments[0]["body"]
    assert "exit code 2" in github.comments[0]["body"]
    assert TOKEN not in github.comments[0]["body"] + log
    assert "@everyone" not in github.comments[0]["body"]
    assert outputs(environment)["state"] == "failed"
    last = log.splitlines()[-1]
    assert last.startswith("::error title=evalguard%3A no verdict::no model%0A::set-env")


def test_another_document_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match="is no"):
        show(path, environment)


def test_the_command_ends_with_0_and_loads_neither_torch_nor_lm_eval(
    environment: dict[str, str], result: Path
) -> None:
    code = (
        "import sys, evalguard.cli\n"
        "try: evalguard.cli.main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "loaded = {'torch', 'lm_eval', 'transformers'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    import os

    done = subprocess.run(
        [sys.executable, "-c", code, "github", str(result), "--comment", "never"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("::stop-commands::")
