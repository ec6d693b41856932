"""A tool can be taken away with its folder: what is left works, and says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample_run import SAMPLE

ROOT = Path(__file__).parent.parent
# Folder of each tool, and a command that goes with it.
TOOLS = {
    "bisect": "bisect",
    "floors": "floor",
    "nights": "nightly",
    "planning": "plan",
    "publish": "track",
    "several": "card",
    "tensors": "tensors",
    "tracing": "trace",
}


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The package without one tool's folder."""
    left_out = shutil.ignore_patterns(request.param, "__pycache__")
    shutil.copytree(ROOT / "evalguard", tmp_path / "evalguard", ignore=left_out)
    for folder in ("configs", "tasks", "demo", "skills"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def evalguard(copy: Path, *words: object) -> subprocess.CompletedProcess[str]:
    code = "import sys\nfrom evalguard.cli import main\nmain(sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    (copy / "empty").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True, text=True, check=False, env=environment, cwd=copy / "empty",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("copy", "command"), list(TOOLS.items()), ids=list(TOOLS), indirect=["copy"]
)
def test_without_a_tools_folder_all_else_works(copy: Path, command: str) -> None:
    helped = evalguard(copy, "--help")
    assert helped.returncode == 0, helped.stderr
    assert f"  {command} " not in helped.stdout
    refused = evalguard(copy, command)
    assert refused.returncode == 2
    assert "its folder evalguard/" in refused.stderr
    shown = evalguard(copy, "report", SAMPLE)
    assert shown.returncode == 0, shown.stderr
    assert "REGRESSED" in shown.stdout
    compared = evalguard(copy, "compare", "--config", "demo", "--base", "orig", "--cand", "orig",
                         "--tasks", "evalguard_choice", "--limit", "4", "--quiet")  # fmt: skip
    assert compared.returncode in (0, 4), compared.stderr


@pytest.mark.slow
@pytest.mark.parametrize("copy", ["bisect"], indirect=True)
def test_without_bisect_a_stored_bisection_is_kept_as_it_was_and_not_shown(copy: Path) -> None:
    shown = evalguard(copy, "report", SAMPLE)
    assert "Bisection not shown: this evalguard has no bisect" in shown.stdout
    for form in ("markdown", "html"):
        page = evalguard(copy, "report", SAMPLE, "--format", form)
        assert page.returncode == 0, page.stderr
        assert "this evalguard has no bisect" in page.stdout
    again = evalguard(copy, "report", SAMPLE, "--format", "json")
    stored = json.loads((SAMPLE / "result.json").read_text())["bisect"]
    assert stored["culprits"]
    assert json.loads(again.stdout)["bisect"] == stored
    asked = evalguard(copy, "compare", "--config", "demo", "--base", "orig", "--cand", "orig",
                      "--bisect", "always")  # fmt: skip
    assert asked.returncode == 2
    assert "its folder evalguard/bisect is missing" in asked.stderr
