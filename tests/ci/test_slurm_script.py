"""The SLURM script: elements of an array score, and the job after them gives the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_world import N_LONG, make_world, run_here

from evalguard.cli.compare_command import compare_command
from evalguard.config.options import NO_HISTORY

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
    assert (options["bisect"], options["track"], options["history"]) == (
        "never", ("none",), NO_HISTORY
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


@pytest.mark.slow
@pytest.mark.nightly
def test_two_elements_share_a_comparison_and_the_job_after_them_judges_it(
    tiny_llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "world").mkdir()
    world = make_world(tmp_path / "world", tiny_llama)
    program, history = tmp_path / "evalguard", tmp_path / "runs.sqlite"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m evalguard "$@"\n')
    program.chmod(0o755)
    named: list[object] = ["--config", world.saying("token_budget: 512")]
    named += ["--base", "orig", "--cand", "sharp", "--tasks", "sw_long", "--json"]

    def job(**slurm: str) -> subprocess.Popen[str]:
        told = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "EVALGUARD_CACHE_DIR": str(tmp_path / "cache"),
            "SLURM_CPUS_PER_TASK": "1",
            **slurm,
        }
        more = ["--bisect", "auto", "--history", history, "--output-path", tmp_path / "out"]
        return subprocess.Popen(
            ["bash", str(SCRIPT), *map(str, [*named, *more])],
            cwd=tmp_path,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    elements = [job(SLURM_ARRAY_TASK_ID=number) for number in ("1", "2")]
    scored = 0
    for element in elements:
        out, err = element.communicate(timeout=600)
        assert element.returncode == 0, err  # though the candidate regressed
        found = json.loads(out)
        assert (found["exit_code"], found["bisect"]) == (1, None)
        scored += sum(one["documents"] - one["kept"] for one in found["resources"]["answers"])
    assert scored >= 2 * N_LONG
    assert not history.exists()
    assert not (tmp_path / "out").exists()
    last = job()
    out, err = last.communicate(timeout=600)
    assert last.returncode == 1, err
    verdict = json.loads(out)
    assert all(one["kept"] == one["documents"] for one in verdict["resources"]["answers"])
    assert [one["setting"] for one in verdict["bisect"]["culprits"]] == ["gain"]
    assert history.exists()
    alone = run_here(
        ["compare", *named, "--threads", 1, "--bisect", "never", "--output-path", tmp_path / "one"],
        capfd,
    )
    assert verdict["comparisons"] == alone.document["comparisons"]
