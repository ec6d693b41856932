"""A bisection that is killed at any moment goes on, repeats nothing, and ends with the same."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_runs import Run, Server, run_server
from planted_world import BASE, CANDIDATE, COUNTING, GUILTY, PlantedWorld

pytestmark = pytest.mark.nightly

KILLS = 10
SEED = 20261120
_PATIENCE = 500.0
_INTERRUPTED = 130  # exit code, before there is a verdict
_OF_A_RUN = {"seconds", "jobs", "proof", "resume"}
Answer = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("bisections"), first=[COUNTING]) as made:
        yield made


def words(world: PlantedWorld, folder: Path, *more: object) -> list[object]:
    named = ["--config", world.guard, "--base", BASE, "--cand", CANDIDATE]
    places = ["--cache-dir", folder / "cache", "--output-path", folder / "out"]
    return ["bisect", *named, *places, "--threads", 1, "--json", *more]


def answer(run: Run) -> Answer:
    """The bisection in the result, without what differs between two runs: time, folders, jobs."""
    assert run.wait() == 1, run.err.read_text()
    found: Answer = json.loads(run.out.read_text())["bisect"]
    for search in found["searches"]:
        del search["loads"]
    return {name: value for name, value in found.items() if name not in _OF_A_RUN}


def begun_and_done(log: Path) -> tuple[Counter[str], Counter[str]]:
    """How often each block of each assignment was begun, and done, by any worker.

    The command's own process scores base and candidate, and says "scores" before each block.
    """
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    commands = {process for process, what, _ in lines if what == "scores"}
    told = [(what, which) for process, what, which in lines if process not in commands]
    begun = Counter(which for what, which in told if what == "begun")
    return begun, Counter(which for what, which in told if what == "done")


@pytest.fixture(scope="module")
def whole(
    server: Server, planted_world: PlantedWorld, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Answer, set[str], float]:
    """A bisection that nothing interrupts: its answer, what it scored, how long it took."""
    folder, begun = tmp_path_factory.mktemp("whole"), time.monotonic()
    found = answer(server.start(words(planted_world, folder), folder / "log"))
    assert {culprit["setting"] for culprit in found["culprits"]} == GUILTY
    scored, done = begun_and_done(folder / "log")
    assert scored == done
    assert set(scored.values()) == {1}
    return found, set(scored), time.monotonic() - begun


def run_folder(out: Path) -> Path:
    """The run folder, as soon as the bisection in it has begun."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := list(out.glob("*/bisection.json"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (stored,) = found
    return stored.parent


@pytest.mark.parametrize(
    ("number", "jobs"), [(signal.SIGKILL, 1), (signal.SIGINT, 1), (signal.SIGKILL, 2)]
)
def test_stopped_ten_times_it_ends_with_the_same_and_repeats_nothing(
    server: Server,
    planted_world: PlantedWorld,
    whole: tuple[Answer, set[str], float],
    tmp_path: Path,
    number: signal.Signals,
    jobs: int,
) -> None:
    expected, scored, seconds = whole
    rng, log, stopped = random.Random(SEED + number), tmp_path / "log", 0
    run = server.start(words(planted_world, tmp_path, "--jobs", jobs), log)
    folder = run_folder(tmp_path / "out")
    longest = seconds / 3.0
    while stopped < KILLS:
        time.sleep(rng.uniform(0.0, longest))
        run.kill(number)
        if was_stopped(run):
            stopped += 1
        else:  # it ended by itself: less is left to do, or the machine is less busy
            longest *= 0.8
        run = server.start(["bisect", "--resume", folder, "--json"], log)
    assert answer(run) == expected
    begun, done = begun_and_done(log)
    assert set(begun) == scored
    # What was under way when a process ended may be done again, and nothing else.
    assert begun.total() - len(scored) <= jobs * stopped
    assert set(done) == scored


def was_stopped(run: Run) -> bool:
    """Whether a run did not end by itself; one that was interrupted says what it knows."""
    code = run.wait()
    if code != 1:
        assert code in (-signal.SIGKILL, _INTERRUPTED), run.err.read_text()
        return True
    bisect = json.loads(run.out.read_text())["bisect"]
    return bisect is None or bisect["status"] == "stopped" or not bisect["repaired"]["passed"]


def test_two_bisections_on_one_cache_give_the_same_answer(
    server: Server,
    planted_world: PlantedWorld,
    whole: tuple[Answer, set[str], float],
    tmp_path: Path,
) -> None:
    expected, scored, _ = whole
    log, cache = tmp_path / "log", ("--cache-dir", tmp_path / "cache")
    runs = [
        server.start([*words(planted_world, tmp_path / str(number)), *cache], log)
        for number in range(2)
    ]
    assert [answer(run) for run in runs] == [expected, expected]
    assert set(begun_and_done(log)[1]) == scored


def test_two_jobs_give_the_same_answer_as_one(
    server: Server,
    planted_world: PlantedWorld,
    whole: tuple[Answer, set[str], float],
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    found = answer(server.start(words(planted_world, tmp_path, "--jobs", 2), log))
    assert found == whole[0]
    begun, done = begun_and_done(log)
    assert begun == done
    assert set(begun.values()) == {1}
    assert set(begun) == whole[1]
