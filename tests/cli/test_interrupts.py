"""Ctrl-C and SIGTERM: exit 130 and 143, what was kept is said, and the next run goes on from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_world import N_LONG, SmallWorld

import evalguard
from evalguard.cli.interrupts import Interrupts
from evalguard.pipeline.evaluate import DOCUMENTS_PER_BLOCK

# A hook that counts forward passes, and where it is told to, stops in the middle of scoring.
HOOK = """
import os, time

def count(model, value):
    def forward(module, given):
        with open(os.environ["COUNT"], "a") as file:
            file.write("x")
        limit = os.environ.get("STOP_AFTER")
        if limit and os.path.getsize(os.environ["COUNT"]) > int(limit):
            open(os.environ["COUNT"] + ".stopped", "w").close()
            time.sleep(120)
    model.register_forward_pre_hook(forward)
"""
BATCH = 32
PASSES = 2 * -(-DOCUMENTS_PER_BLOCK // BATCH) + -(-(N_LONG - 2 * DOCUMENTS_PER_BLOCK) // BATCH)


@pytest.fixture
def command(world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A comparison of a counting model with itself on three blocks of documents."""
    (tmp_path / "hook.py").write_text(HOOK)
    guard = tmp_path / "guard.yaml"
    guard.write_text(
        "models:\n  slow:\n"
        f"    model_args: {{pretrained: {world.models['llama']}, dtype: float32}}\n"
        "    settings: {s: {reference: 0, candidate: 1, target: 'call:hook.py:count'}}\n"
    )
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "count").touch()
    words = ["compare", "--config", guard, "--base", "slow", "--cand", "slow", "--threads", 1]
    words += ["--tasks", "sw_long", "--include-path", world.tasks, "--batch-size", BATCH]
    return [str(word) for word in words]


def passes(tmp_path: Path) -> int:
    return (tmp_path / "count").stat().st_size


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    checkout = str(Path(evalguard.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-m", "evalguard", *command],
        env={**os.environ, "PYTHONPATH": checkout, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(
    run: Any, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_block = DOCUMENTS_PER_BLOCK // BATCH
    process = start(command, STOP_AFTER=str(2 * per_block + 1))  # in the middle of the third block
    wait_for(tmp_path / "count.stopped", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert (
        f"stopped: interrupted: slow (base) on sw_long, {2 * DOCUMENTS_PER_BLOCK} of {N_LONG} "
        "documents done"
    ) in err
    assert "hint: finished blocks of documents are kept; the same command goes on from there" in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.partial"))

    (tmp_path / "count").write_text("")
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    ran = run(*command, "--json")
    assert ran.code == 0
    assert ran.document["comparisons"][0]["n"] == N_LONG
    # One block of the base was left; the candidate is the same model, so all of it was kept.
    assert passes(tmp_path) == PASSES - 2 * per_block


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send this process a real signal when a function of the pipeline is called."""

    def when(place: str, number: signal.Signals) -> None:
        def called(*_: object, **__: object) -> None:
            os.kill(os.getpid(), number)
            time.sleep(5)  # the handler ends this

        monkeypatch.setattr(place, called)

    return when


@pytest.mark.parametrize(
    ("place", "doing"),
    [
        ("evalguard.pipeline.compare.choose", "interrupted while reading what is to be compared"),
        ("evalguard.pipeline.scoring.load_tasks", "interrupted while loading tasks (sw_long)"),
        ("evalguard.pipeline.scoring.open_scorer", "interrupted while loading slow (base)"),
        ("evalguard.harness.tasks.build_requests", "interrupted while building the requests"),
        ("evalguard.pipeline.evaluate.score_tables", "while scoring slow (base) on sw_long"),
        ("evalguard.pipeline.compare.compare_tables", "interrupted while comparing the scores"),
        ("evalguard.models.lm_scorer.LMScorer.close", "interrupted while scoring"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_clean_end_wherever_it_comes(
    run: Any, command: list[str], signalled: Any, place: str, doing: str, number: signal.Signals
) -> None:
    signalled(place, number)
    started = time.monotonic()
    ran = run(*command, "--limit", "3", "--json", "--git-bisect")
    assert time.monotonic() - started < 5
    assert ran.code == 128 + number == ran.document["exit_code"]
    assert doing in ran.err
    assert "the same command goes on" in ran.err
    assert ran.document["error"]["type"] == "Interrupted"
    assert "Traceback" not in ran.err


def test_without_a_cache_nothing_is_promised(run: Any, command: list[str], signalled: Any) -> None:
    signalled("evalguard.models.lm_scorer.LMScorer.score", signal.SIGTERM)
    ran = run(*command, "--limit", "3", "--no-cache")
    assert ran.code == 143
    assert "interrupted: slow (base) on sw_long, 0 of 3 documents done" in ran.err
    assert "the same command starts anew" in ran.err


def test_a_signal_that_comes_twice_counts_once() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert interrupts.exit_code == 143


def test_handlers_are_put_back_and_those_of_others_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as under nohup
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, ignored)
