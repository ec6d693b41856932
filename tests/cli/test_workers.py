"""Worker processes: the same scores, ``env`` settings in force, and clear ends when they fail."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from small_world import SmallWorld

import evalguard
from evalguard.models.runtimes.types import RUNTIME_TYPES, RuntimeType

FAKE = Path(__file__).parents[1] / "worker" / "fake_worker.py"


@pytest.fixture(autouse=True)
def find_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evalguard.__file__).parent.parent))


ALL_TASKS = ("--tasks", "sw_word,sw_choice,sw_text")


@pytest.mark.slow
def test_an_env_setting_runs_in_a_worker_with_the_same_scores_as_here(compare: Any) -> None:
    ran = compare("orig", "flagged", *ALL_TASKS, "--no-cache", "--threads", "1", "--json")
    assert ran.code == 0
    assert ran.document["candidate"]["effective"] == {"flag": "1"}
    assert all(comparison["bit_identical"] for comparison in ran.document["comparisons"])
    assert "SMALL_WORLD_FLAG" not in os.environ


@pytest.mark.slow
def test_everything_in_workers_gives_the_same_document_as_here(
    compare: Any, world: SmallWorld
) -> None:
    words = (*ALL_TASKS, "--no-cache", "--threads", "1", "--json")
    here = compare("orig", "sharp", *words).document
    there = compare("orig", "sharp", *words, "--config", world.saying("worker: always")).document
    assert here["comparisons"] == there["comparisons"]
    assert [here[side]["digest"] for side in ("base", "candidate")] == [
        there[side]["digest"] for side in ("base", "candidate")
    ]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, refused: Any, world: SmallWorld, tmp_path: Path) -> Any:
    """Compare models of arithmetic, in workers that misbehave as the model type says."""
    monkeypatch.setattr(
        "evalguard.worker.client.worker_command",
        lambda python: [sys.executable, "-u", str(FAKE), "evalguard.engine.worker_main"],
    )
    llama = world.models["llama"]

    def compared(misdeed: str, *words: object, run: str = "worker: always") -> Any:
        kind = RuntimeType(module="", imports=(), requirements=(), purpose="", arguments=None)
        monkeypatch.setitem(cast(dict[str, RuntimeType], RUNTIME_TYPES), misdeed, kind)
        guard = tmp_path / "workers.yaml"  # no model of it: what it says counts all the same
        guard.write_text(f"run: {{{run}}}")
        sides = ("compare", "--base", llama, "--cand", llama, "--model", misdeed)
        tasks = ("--tasks", "sw_word", "--include-path", world.tasks, "--config", guard)
        return refused(3, *sides, *tasks, "--cache-dir", tmp_path / "cache", *words)

    return compared


def test_a_worker_that_dies_is_exit_3_with_its_log_and_last_words(
    fake: Any, tmp_path: Path
) -> None:
    ran = fake("os._exit")
    assert re.search("the worker of model '[^']+' exited with code 3", ran.err)
    assert "while loading the model" in ran.err
    assert "last words" in ran.err
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert str(log) in ran.err


def test_a_worker_that_hangs_is_ended_by_the_timeout(fake: Any) -> None:
    ran = fake("sleep", run="worker: always, timeout: 0.5")
    assert "the worker of model" in ran.err
    assert "0.5" in ran.err
