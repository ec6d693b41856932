"""The SLURM script: elements of an array score, and the job after them gives the verdict."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from evalguard.cli.compare import compare_command

SCRIPT = Path(__file__).parent.parent.parent / "ci" / "slurm" / "compare.sbatch"
WORDS = ["--base", "orig", "--cand", "a model", "--bisect", "always"]


def submit(folder: Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a node does, with an evalguard that notes its words."""
    fake = folder / "evalguard"
    fake.write_text(f'#!/bin/bash\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@" >words\nexit {code}\n')
    fake.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPT), *WORDS],
        cwd=folder,
        env={"PATH": path, "TMPDIR": str(folder), "SLURM_CPUS_PER_TASK": "4", **environment},
        capture_output=True,
        text=True,
    )


def words(folder: Path) -> list[str]:
    return (folder / "words").read_text().splitlines()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 0), (4, 0), (2, 2), (3, 3)])
def test_an_element_scores_and_leaves_the_verdict(tmp_path: Path, code: int, expected: int) -> None:
    done = submit(tmp_path, code, EVALGUARD_CACHE_DIR="/shared", SLURM_ARRAY_TASK_ID="3")
    assert done.returncode == expected
    threads, command, *given = words(tmp_path)
    assert (threads, command) == ("4", "compare")
    assert given[: len(WORDS)] == WORDS
    options = compare_command.make_context("compare", [*given]).params
    assert (options["bisect"], options["track"], options["no_history"]) == (
        "never", ("none",), True
    )  # fmt: skip
    assert not Path(given[-1]).exists()  # its report went there


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_job_after_them_ends_as_the_comparison_does(tmp_path: Path, code: int) -> None:
    done = submit(tmp_path, code, EVALGUARD_CACHE_DIR="/shared")
    assert done.returncode == code
    assert words(tmp_path) == ["4", "compare", *WORDS]


def test_without_a_cache_folder_it_says_which_variable_names_one(tmp_path: Path) -> None:
    done = submit(tmp_path)
    assert done.returncode != 0
    assert "EVALGUARD_CACHE_DIR: names the cache folder that all nodes see" in done.stderr
    assert not (tmp_path / "words").exists()
