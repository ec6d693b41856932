"""The demo's bisection, as a user runs it: its guilty settings, nobody else, and the price."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalguard.run.meter import find_demo_guard

pytestmark = pytest.mark.nightly
GUILTY = {"attn_scale", "final_softcap", "rope_theta"}


def test_the_demo_names_its_guilty_settings_exactly_and_what_that_cost(tmp_path: Path) -> None:
    words = ["compare", "--config", find_demo_guard(), "--base", "orig", "--cand", "fla-port"]
    places = ["--cache-dir", tmp_path / "cache", "--output-path", tmp_path / "out"]
    ran = subprocess.run(
        [sys.executable, "-m", "evalguard", *map(str, [*words, *places]), "--threads", "1", "-v"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    (folder,) = (tmp_path / "out").iterdir()
    found = json.loads((folder / "result.json").read_text())["bisect"]
    assert {culprit["setting"] for culprit in found["culprits"]} == GUILTY
    assert found["status"] == "minimal"
    assert found["repaired"]["passed"]
    assert 0.0 < found["evaluations"] < 11.0  # of eleven settings one at a time
    for name in GUILTY:
        assert name in ran.stdout
    assert "full evaluations" in ran.stdout
