"""The action, the templates and the hook: valid by their schemas, and safe from injection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = ACTION["runs"]["steps"]


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-actions", "action.yml"),
        ("vendor.github-workflows", "ci/github/pull-request.yml"),
        ("vendor.github-workflows", "ci/github/nightly.yml"),
        ("vendor.gitlab-ci", "ci/gitlab/evalguard.yml"),
    ],
)
def test_the_file_satisfies_its_schema(schema: str, file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(ROOT / file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hook_is_what_pre_commit_takes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"],
        cwd=ROOT,
        env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("evalguard.yaml", True),
        ("sub/evalguard.yml", True),
        ("configs/port.yaml", True),
        ("configs/sub/x.yaml", False),
        ("myevalguard.yaml", False),
        ("configs/port.json", False),
    ],
)
def test_the_hook_looks_at_guard_files_only(path: str, checked: bool) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert bool(re.search(hook["files"], path)) == checked


def test_zizmor_finds_nothing() -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "zizmor"),
            "--offline",
            "--no-progress",
            "--persona=pedantic",
            "action.yml",
            "ci/github",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_branch_reads_the_scores_that_another_one_kept_on_gitlab() -> None:
    template = yaml.safe_load((ROOT / "ci/gitlab/evalguard.yml").read_text())[".evalguard"]
    cache = template["cache"]
    assert "$CI_COMMIT_REF_SLUG" in cache["key"]
    assert "$CI_JOB_NAME_SLUG" in cache["key"]
    assert cache["unprotect"] is False
    assert "fallback_keys" not in cache
    assert not [name for name in template["variables"] if "FALLBACK" in name]
    assert cache["policy"] == "$EVALGUARD_CACHE_POLICY"
    assert template["variables"]["EVALGUARD_CACHE_POLICY"] == "pull-push"


def test_a_cache_key_that_begins_with_another_has_a_cache_of_its_own() -> None:
    (step,) = [one for one in STEPS if "actions/cache@" in one.get("uses", "")]

    def filled(text: str, key: str) -> str:
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda f: key if "cache-key" in f[1] else "1", text)

    def finds(mine: str, kept: str) -> bool:
        written = filled(step["with"]["key"], kept)
        return written.startswith(filled(step["with"]["restore-keys"], mine))

    assert finds("scores", "scores")
    assert not finds("scores", "scores-int4")
    assert not finds("scores-int4", "scores")


def test_examples_for_pull_requests_never_run_a_strangers_code_with_rights() -> None:
    for file in (ROOT / "ci/github").glob("*.yml"):
        events = yaml.safe_load(file.read_text())[True]  # YAML 1.1 reads `on` as true
        assert not {"pull_request_target", "workflow_run", "issue_comment"} & set(events), file


def test_no_expression_stands_in_a_script() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step["name"]


def test_actions_of_others_are_pinned_by_hash() -> None:
    for file in ("action.yml", "ci/github/pull-request.yml"):
        for used in re.findall(r"uses: (\S+)", (ROOT / file).read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used


def test_every_output_comes_from_a_step_that_sets_it() -> None:
    source = "".join(path.read_text() for path in (ROOT / "evalguard/publish").glob("*.py"))
    for output in ACTION["outputs"].values():
        found = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.([\w-]+) \}\}", output["value"])
        assert found
        step, name = found.groups()
        (setter,) = [one for one in STEPS if one.get("id") == step]
        assert f"{name}=" in setter["run"] or f'"{name}"' in source, name
