"""The wheel holds all that the demo needs, and works from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of a freshly built wheel."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    assert wheel.name.startswith("lm_evalguard-")
    assert wheel.stat().st_size < 6_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "site")
    return out / "site"


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
    environment["EVALGUARD_CACHE_DIR"] = str(folder / "cache")
    return subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-m", "evalguard", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_carries_types_template_tasks_and_the_demo(installed: Path) -> None:
    for name in (
        "py.typed",
        "config/template.yaml",
        "_embedded/configs/demo.yaml",
        "_embedded/tasks/evalguard_lastword.yaml",
        "_embedded/demo/model/model.safetensors",
    ):
        assert (installed / "evalguard" / name).is_file(), name
    assert not (installed / "tests").exists()
    (entries,) = installed.glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\nevalguard = evalguard.pytest_plugin" in entries.read_text()


def test_compare_works_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed, tmp_path, "compare", "--base", "orig", "--cand", "fla-port", "--limit", "100"
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("REGRESSED")
    (folder,) = (tmp_path / "reports").iterdir()
    (told,) = [
        note
        for note in json.loads((folder / "result.json").read_text("utf-8"))["notes"]
        if note.startswith("no guard file here: the built-in demo's is used")
    ]
    assert str(installed) in told or "demo.yaml" in told
