"""The action's steps, run as the runner does: scripts in bash, inputs in its environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalguard.cli.main import cli

ROOT = Path(__file__).parent.parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
GITLAB = yaml.safe_load((ROOT / "ci/gitlab/evalguard.yml").read_text("utf-8"))

# Stands in for Python: notes its words, then answers as `evalguard compare --json` would.
FAKE = """#!/bin/bash
case "$*" in
  "-c "*) exec {python} "$@" ;;
  "-m evalguard compare "*)
    shift 3
    printf '%s\\n' "$@" >>"$CALLS"
    echo "cache $EVALGUARD_CACHE_DIR" >>"$CALLS"
    [ -z "$EVALGUARD_GITLAB_TOKEN" ] || echo "the token is there" >>"$CALLS"
    cat "$ANSWER"
    exit "$(cat "$CODE")" ;;
  "-m evalguard git"*) shift 3; printf '%s\\n' "$@" >>"$CALLS" ;;
  *) printf '%s\\n' "$@" >>"$CALLS" ;;
esac
"""


class Job:
    """A job that runs steps of the action one after the other."""

    def __init__(self, folder: Path, *, python: str = "", **inputs: str) -> None:
        self.folder = folder
        self.outputs: dict[str, dict[str, str]] = {}
        self.files = {name: folder / name for name in ("CALLS", "ANSWER", "CODE", "GITHUB_OUTPUT")}
        for file in self.files.values():
            file.write_text("")
        self.files["CODE"].write_text("0")
        self.files["ANSWER"].write_text("{}")
        fake = folder / "fake-python"
        fake.write_text(FAKE.format(python=sys.executable))
        fake.chmod(0o755)
        defaults = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()}
        self.inputs = {**defaults, "python": python or str(fake), "token": "", **inputs}

    def run(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the step of a name, with ``environment`` beside what the step sets."""
        (step,) = [one for one in ACTION["runs"]["steps"] if one["name"] == name]
        self.files["GITHUB_OUTPUT"].write_text("")
        own = {key: self._value(text) for key, text in step.get("env", {}).items()}
        files = {key: str(path) for key, path in self.files.items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder), **files, **own, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = self.files["GITHUB_OUTPUT"].read_text().splitlines()
        pairs = [line.split("=", 1) for line in lines if "=" in line]
        self.outputs[step.get("id", name)] = {pair[0]: pair[1] for pair in pairs}
        return done

    def calls(self) -> list[str]:
        return self.files["CALLS"].read_text().splitlines()

    def _value(self, text: str) -> str:
        if "${{" not in text:
            return text
        found = re.fullmatch(r"\$\{\{ (\w+)\.([\w.-]+) \}\}", text)
        assert found, text
        if found[1] == "inputs":
            return self.inputs[found[2]]
        if found[1] == "steps":
            step, _, name = found[2].split(".")
            return self.outputs[step][name]
        assert text == "${{ github.action_path }}"
        return str(ROOT)


def test_inputs_become_the_words_of_the_command(tmp_path: Path) -> None:
    job = Job(
        tmp_path, base="orig", candidate="port", config="a b.yaml", tasks="x,y",
        arguments="--limit\n500\n\n--set\na=1 2",
    )  # fmt: skip
    assert job.run("Compare").returncode == 0
    assert job.calls() == [
        "--base=orig", "--cand=port", "--output-path=reports", "--json", "--config=a b.yaml",
        "--tasks=x,y", "--limit", "500", "--set", "a=1 2", f"cache {tmp_path}/.cache/evalguard",
    ]  # fmt: skip
    assert job.outputs["compare"]["exit-code"] == "0"
    assert Path(job.outputs["compare"]["result"]).read_text() == "{}"


def test_what_the_action_types_is_what_evalguard_takes(tmp_path: Path) -> None:
    """With the inputs of the example for pull requests, each of which the action has."""
    workflow = yaml.safe_load((ROOT / "ci/github/pull-request.yml").read_text("utf-8"))
    (used,) = [
        one["with"]
        for one in workflow["jobs"]["compare"]["steps"]
        if "OWNER" in one.get("uses", "")
    ]
    assert used.keys() <= ACTION["inputs"].keys()
    job = Job(tmp_path, **used)
    assert job.run("Compare").returncode == 0
    given = taken("compare", job.calls()[:-1])
    assert (given["base"], given["cand"], given["sequential"]) == ("orig", ("port",), True)
    assert (str(given["config"]), given["as_json"]) == (used["config"], True)
    said = len(job.calls())
    assert job.run("Show the result").returncode == 0
    shown = taken("github", job.calls()[said:])
    assert (shown["comment"], shown["name"]) == ("always", "port against orig")


def test_what_the_gitlab_template_types_is_what_evalguard_takes(tmp_path: Path) -> None:
    """With the variables of the job in its comment, each of which the template has."""
    text = (ROOT / "ci/gitlab/evalguard.yml").read_text("utf-8")
    comment = "".join(line[2:] for line in text.splitlines(keepends=True) if line[:2] == "# ")
    example = yaml.safe_load(comment[comment.index("  port:") : comment.index("The merge")])
    variables = example["port"]["variables"]
    assert variables.keys() <= GITLAB[".evalguard"]["variables"].keys()
    job = Job(tmp_path)
    more = {"EVALGUARD_TASKS": "a,b", "EVALGUARD_ARGUMENTS": "--strict", "CI_JOB_NAME": "port"}
    assert gitlab_run(job, **variables, **more).returncode == 0
    calls = job.calls()
    end = next(at for at, one in enumerate(calls) if one.startswith("cache "))
    given = taken("compare", calls[:end])
    assert (given["base"], given["cand"]) == ("orig", ("port",))
    assert [str(one) for one in given["output"]] == ["evalguard.xml", "evalguard.md"]
    assert taken("gitlab", calls[end + 1 :])["name"] == "port"


def taken(command: str, words: list[str]) -> dict[str, Any]:
    """What evalguard's command line makes of words.

    Raises:
        click.UsageError: it does not take them.
    """
    return cli.commands[command].make_context(command, list(words), obj="").params


@pytest.mark.parametrize(
    "evil", ["$(touch pwned)", "`touch pwned`", '"; touch pwned; "', "-x\n$IFS"]
)
def test_no_input_is_read_as_code(tmp_path: Path, evil: str) -> None:
    every = dict.fromkeys(("base", "candidate", "config", "tasks", "arguments", "name"), evil)
    job = Job(tmp_path, **every, comment=evil, install=evil)
    assert job.run("Install evalguard").returncode == 0
    assert job.run("Compare").returncode == 0
    assert job.run("Show the result").returncode == 0
    assert not (tmp_path / "pwned").exists()
    assert f"--base={evil}".split("\n")[0] in job.calls()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no PYTHONSAFEPATH before 3.11")
def test_no_module_of_the_repository_stands_in_for_one_of_python(tmp_path: Path) -> None:
    job = Job(tmp_path, base="a", candidate="b")
    (tmp_path / "secrets.py").write_text("open('pwned', 'w')")
    assert job.run("Compare").returncode == 0
    assert not (tmp_path / "pwned").exists()
    for step in ACTION["runs"]["steps"]:
        if "EG_PYTHON" in step.get("run", ""):
            assert step["env"]["PYTHONSAFEPATH"] == "1", step["name"]
    assert GITLAB[".evalguard"]["variables"]["PYTHONSAFEPATH"] == "1"


def test_what_the_comparison_prints_is_no_command(tmp_path: Path) -> None:
    lines = Job(tmp_path, base="a", candidate="b").run("Compare").stdout.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32
    assert lines[-1] == f"::{token}::"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_exit_code_is_that_of_the_comparison_after_all_was_shown(
    tmp_path: Path, code: int
) -> None:
    job = Job(tmp_path, base="a", candidate="b")
    job.files["CODE"].write_text(str(code))
    assert job.run("Compare").returncode == 0
    assert job.run("Show the result").returncode == 0
    assert job.run("Verdict").returncode == code
    assert job.calls()[-4:-1] == ["--comment=always", "--name=b against a", "--"]


def test_a_comparison_that_was_killed_leaves_an_error_to_show(tmp_path: Path) -> None:
    job = Job(tmp_path, base="a", candidate="b")
    job.files["ANSWER"].write_text("")
    job.files["CODE"].write_text("137")
    job.run("Compare")
    shown = json.loads(Path(job.outputs["compare"]["result"]).read_text())
    assert (shown["schema"], shown["exit_code"]) == ("evalguard.error/1", 3)
    assert job.run("Verdict").returncode == 137


def test_its_own_version_is_installed_unless_another_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run("Install evalguard")
    job.inputs["install"] = "lm-evalguard==9"
    job.run("Install evalguard")
    words = ["-m", "pip", "install", "--quiet", "--"]
    assert job.calls() == [*words, str(ROOT), *words, "lm-evalguard==9"]


def gitlab_run(job: Job, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the template's scripts as the runner does, with ``python`` of the job."""
    tmp_path, template = job.folder, GITLAB[".evalguard"]
    if not (tmp_path / "python").exists():
        (tmp_path / "python").symlink_to(tmp_path / "fake-python")
    return subprocess.run(
        ["sh", "-ec", "\n".join([*template["before_script"], *template["script"]])],
        cwd=tmp_path,
        env={
            **os.environ,
            **{name: str(path) for name, path in job.files.items()},
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            **dict.fromkeys(template["variables"], ""),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_gitlab_passes_the_variables_as_words(tmp_path: Path) -> None:
    job = Job(tmp_path)
    done = gitlab_run(
        job,
        EVALGUARD_BASE="$(touch pwned)",
        EVALGUARD_CANDIDATE="a b",
        EVALGUARD_ARGUMENTS="--limit 5 *",
        EVALGUARD_INSTALL="lm-evalguard",
        CI_JOB_NAME="$(touch pwned) `touch pwned`",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pwned").exists()
    assert job.calls() == [
        "-m", "pip", "install", "--quiet", "--", "lm-evalguard",
        "--base=$(touch pwned)", "--cand=a b", "-o", "evalguard.xml", "-o", "evalguard.md",
        "--limit", "5", "*", "--json", "cache ", "--comment=always",
        "--name=$(touch pwned) `touch pwned`", "--", "evalguard.json",
    ]  # fmt: skip


def test_gitlab_s_token_is_not_shown_to_what_is_compared(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert gitlab_run(job, EVALGUARD_GITLAB_TOKEN="glpat-x").returncode == 0
    assert "the token is there" not in job.calls()


@pytest.mark.parametrize(("code", "answer"), [(0, "{}"), (1, "{}"), (3, ""), (137, "")])
def test_gitlab_ends_as_the_comparison_did_after_all_was_shown(
    tmp_path: Path, code: int, answer: str
) -> None:
    job = Job(tmp_path)
    job.files["CODE"].write_text(str(code))
    job.files["ANSWER"].write_text(answer)
    assert gitlab_run(job).returncode == code
    assert job.calls()[-1] == "evalguard.json"
    shown = json.loads((tmp_path / "evalguard.json").read_text())
    assert shown == {} or shown["schema"] == "evalguard.error/1"


@pytest.mark.slow
def test_the_whole_action_over_the_demo(tmp_path: Path) -> None:
    """Both models are really compared, and everything that GitHub reads is really written."""
    job = Job(
        tmp_path, python=sys.executable, base="orig", candidate="fla-port",
        tasks="evalguard_lastword", arguments="--limit\n256\n--bisect\nnever", comment="never",
        config=str(ROOT / "configs/demo.yaml"),
    )  # fmt: skip
    summary = tmp_path / "summary.md"
    assert job.run("Compare").returncode == 0
    shown = job.run("Show the result", GITHUB_STEP_SUMMARY=str(summary))
    assert shown.returncode == 0, shown.stderr
    code = job.outputs["compare"]["exit-code"]
    result = json.loads(Path(job.outputs["compare"]["result"]).read_text())
    assert str(result["exit_code"]) == code
    assert result["gate"]["state"].upper() in summary.read_text().splitlines()[0]
    assert (tmp_path / result["run_folder"] / "junit.xml").is_file()
    assert f"\n{result['gate']['state']}\n" in job.files["GITHUB_OUTPUT"].read_text()
    assert job.run("Verdict").returncode == int(code)
