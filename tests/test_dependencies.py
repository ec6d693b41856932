"""evalguard works with the lowest versions that pyproject.toml admits, and with the newest.

Each environment is made by pip, as pip is configured here: an index with CPU builds of torch saves
some gigabytes. ``EVALGUARD_PYTHONS`` lists interpreters that are not on PATH, separated by ``:``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import interpreter
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.13")
TEST_TOOLS = (
    "gguf",
    "hypothesis",
    "jsonschema",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "statsmodels",
)
# Two minutes of what touches the libraries most: tables, tasks, models, settings, statistics.
CORE = (
    "tests/config",
    "tests/conversion",
    "tests/harness",
    "tests/models/test_hf_scores.py",
    "tests/models/test_lm_scorer.py",
    "tests/stats/test_power.py",
    "tests/stats/test_stats_clusters.py",
    "tests/store",
)


def dependencies() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [Requirement(text) for text in project["dependencies"]]


def lowest(requirement: Requirement) -> str:
    """The requirement with its lower bound as its only version."""
    (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={bound}{marker}"


def run(*words: str | Path, folder: Path, code: int = 0) -> str:
    """Run a command with a clean environment; return what it wrote to stdout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "EVALGUARD_"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**kept, "HF_HUB_OFFLINE": "1", "EVALGUARD_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    told = f"{words[0]}: {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    assert done.returncode == code, told
    # Of pytest itself it may say so: it collects what a failing test left behind.
    assert Path(words[0]).name == "pytest" or "Exception ignored in" not in done.stderr, told
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_every_dependency_has_one_lower_bound() -> None:
    for requirement in dependencies():
        assert re.fullmatch(r"[\w-]+==[\d.]+(; .*)?", lowest(requirement))


@pytest.mark.parametrize("python", PYTHONS)
def test_a_dependency_is_named_once_for_each_python(python: str) -> None:
    here = [
        requirement.name
        for requirement in dependencies()
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python})
    ]
    assert len(here) == len(set(here))
    assert {"numpy", "scipy", "torch", "transformers"} <= set(here)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_demo_and_core_tests_pass_with(
    versions: str, python: str, wheel: Path, tmp_path: Path
) -> None:
    run(interpreter(python), "-m", "venv", tmp_path / "venv", folder=tmp_path)
    programs = tmp_path / "venv/bin"
    pins = [lowest(requirement) for requirement in dependencies()] if versions == "lowest" else []
    install = (programs / "python", "-m", "pip", "install", "--quiet")
    run(*install, wheel, *pins, *TEST_TOOLS, folder=tmp_path)

    words = ("demo", "--json", "--track", "none")
    report = json.loads(run(programs / "evalguard", *words, folder=tmp_path, code=1))
    assert "rope_theta" in {culprit["setting"] for culprit in report["bisect"]["culprits"]}

    # Old libraries warn of what newer ones changed; that is not a failure here.
    chosen = ("-q", "-m", "not slow and not nightly and not gpu", "-o", "filterwarnings=default")
    run(programs / "pytest", *chosen, *CORE, folder=ROOT)
    shutil.rmtree(tmp_path / "venv")  # gigabytes, which pytest would keep for three sessions
