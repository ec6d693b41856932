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


def test_no_expression_stands_in_a_script() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step["name"]


def test_actions_of_others_are_pinned_by_hash() -> None:
    for file in ("action.yml", "ci/github/pull-request.yml"):
        for used in re.findall(r"uses: (\S+)", (ROOT / file).read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used


def test_every_output_comes_from_a_step_that_sets_it() -> None:
    rooms = ("github", "shown_result")
    source = "".join((ROOT / f"evalguard/pipeline/{room}.py").read_text() for room in rooms)
    for output in ACTION["outputs"].values():
        found = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.([\w-]+) \}\}", output["value"])
        assert found
        step, name = found.groups()
        (setter,) = [one for one in STEPS if one.get("id") == step]
        assert f"{name}=" in setter["run"] or f'"{name}"' in source, name
