"""Ctrl-C and SIGTERM: exit 130 and 143, what was kept is said, and the next run goes on from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from small_world import N_LONG, SmallWorld

import evalguard
from evalguard.cli.main import Interrupts
from evalguard.engine.executor import BLOCK_CUT
from evalguard.models.lm_scorer import LMScorer

BLOCKS = BLOCK_CUT.parts(N_LONG, N_LONG)
# Blocks are dealt evenly: none is more than a document larger than another.
LAST = -(-N_LONG // BLOCKS)

# The command with a model that counts the blocks it scores, and stops in the middle of one.
COUNTING = """
import os, sys, time
from evalguard.cli import main
from evalguard.models.lm_scorer import LMScorer

score = LMScorer.score

def counted(self, requests):
    if os.path.getsize(os.environ["COUNT"]) == int(os.environ["STOP_AFTER"]):
        open(os.environ["COUNT"] + ".stopped", "w").close()
        time.sleep(600)
    with open(os.environ["COUNT"], "a") as file:
        file.write("x")
    return score(self, requests)

LMScorer.score = counted
main(sys.argv[1:])
"""


@pytest.fixture
def command(world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A comparison of a model with itself on some blocks of documents."""
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    words = ["compare", "--config", world.guard, "--base", "orig", "--cand", "orig"]
    words += ["--tasks", "sw_long", "--threads", 1]
    return [str(word) for word in words]


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    checkout = str(Path(evalguard.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", COUNTING, *command],
        env={**os.environ, "PYTHONPATH": checkout, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 500
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(
    run: Any, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count").touch()
    command += ["--distributions", "off"]  # one model after the other, so that blocks count
    process = start(command, COUNT=str(tmp_path / "count"), STOP_AFTER=str(BLOCKS - 1))
    wait_for(tmp_path / "count.stopped", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=500)
    assert (process.returncode, out) == (130, "")
    done = f"{N_LONG - LAST} of {N_LONG} documents done"
    assert f"stopped: interrupted: orig (base) on sw_long, {done}" in err
    assert "hint: finished blocks of documents are kept; the same command goes on from there" in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.partial"))

    scored: list[int] = []
    score = LMScorer.score
    monkeypatch.setattr(
        LMScorer, "score", lambda self, asked: scored.append(len(asked)) or score(self, asked)
    )
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    ran = run(*command, "--json")
    assert ran.code == 0
    assert ran.document["comparisons"][0]["n"] == N_LONG
    # The base's last block; the candidate is the same model, so all of it was kept by then.
    assert scored == [LAST]


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send this process a real signal when a function of the pipeline is called."""

    def when(place: str, number: signal.Signals) -> None:
        sent: list[int] = []

        def called(*_: object, **__: object) -> None:
            if not sent:  # what is released on the way out may come by here again
                sent.append(number)
                os.kill(os.getpid(), number)
                time.sleep(60)  # the handler ends this

        monkeypatch.setattr(place, called)

    return when


@pytest.mark.parametrize(
    ("place", "doing"),
    [
        (
            "evalguard.comparison.compare.resolve_choices",
            "interrupted while reading what is to be compared",
        ),
        (
            "evalguard.engine.run_context.load_tasks",
            "interrupted while loading tasks (sw_long)",
        ),
        ("evalguard.engine.run_context.open_scorer", "interrupted while loading orig (base)"),
        ("evalguard.harness.tasks.build_requests", "interrupted while building the requests"),
        (
            "evalguard.engine.task_scores.score_tables",
            "while scoring orig (base) and orig (candidate)",
        ),
        (
            "evalguard.comparison.judge.compare_by_document",
            "interrupted while comparing the scores",
        ),
        ("evalguard.models.lm_scorer.LMScorer.close", "interrupted while scoring"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_clean_end_wherever_it_comes(
    run: Any, command: list[str], signalled: Any, place: str, doing: str, number: signal.Signals
) -> None:
    signalled(place, number)
    ran = run(*command, "--limit", "3", "--json", "--git-bisect")
    assert ran.code == 128 + number == ran.document["exit_code"]
    assert doing in ran.err
    assert "the same command goes on" in ran.err
    assert ran.document["error"]["type"] == "Interrupted"
    assert "Traceback" not in ran.err


def test_without_a_cache_nothing_is_promised(run: Any, command: list[str], signalled: Any) -> None:
    signalled("evalguard.engine.answer.score_in_lockstep", signal.SIGTERM)
    ran = run(*command, "--limit", "3", "--no-cache")
    assert ran.code == 143
    both = "orig (base) and orig (candidate)"
    assert f"interrupted: {both} on sw_long, 0 of 3 documents done" in ran.err
    assert "the same command starts anew" in ran.err


def test_a_signal_that_comes_twice_counts_once() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert interrupts.exit_code == 143


class Dying:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Watched:
    def __init__(self) -> None:
        weakref.finalize(self, signal.raise_signal, signal.SIGINT)


@pytest.mark.parametrize("kind", [Dying, Watched])
def test_a_signal_where_python_ignores_exceptions_counts_a_moment_later(kind: type) -> None:
    with Interrupts():
        kind()  # is gone at once
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)


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


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("evalguard.comparison.stored_run.read_report", ("report", "RUN")),
        ("evalguard.publish.forges.read_document", ("github", "RUN")),
        ("evalguard.publish.forges.read_document", ("gitlab", "RUN")),
        (
            "evalguard.publish.tracking.read_stored_run",
            ("track", "RUN", "--track", "mlflow"),
        ),
        ("evalguard.nights.history_questions.list_runs", ("history", "list", "--history", "RUN")),
        ("evalguard.comparison.cache.list_cache", ("cache", "ls")),
    ],
)
def test_commands_about_finished_runs_end_like_all_others(
    run: Any, signalled: Any, tmp_path: Path, place: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "result.json").write_text('{"schema": "evalguard.compare/1"}')
    signalled(place, signal.SIGINT)
    ran = run(*(str(tmp_path) if word == "RUN" else word for word in words))
    assert (ran.code, ran.out) == (130, "")
    assert ran.err == "stopped: interrupted\nhint: the same command starts again\n"


def test_ctrl_c_while_the_result_is_shown_says_where_it_is(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(text: str, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["evalguard.cli.main"], "write_result", interrupted)
    ran = run("cache", "ls")
    assert ran.code == 130
    assert "stopped: interrupted while the result was shown" in ran.err
    assert "evalguard report RUN shows it" in ran.err
