"""Runs that are killed at any moment go on from the last finished block, and end with the same."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_runs import Run, Server, run_server
from small_world import SmallWorld

from evalguard.store.leases import Lease

pytestmark = pytest.mark.nightly

TASKS = "sw_long,sw_choice,sw_text"
BLOCKS = 30 + 2 + 2  # of ten documents or twelve
KILLS, ROUNDS = 30, 3
SEED = 20261120
Whole = tuple[dict[str, Any], float]
# What differs between two runs of one command: when it was, where it went, what it took.
VOLATILE = {"created", "run_folder", "command", "resources", "checksum"}
# Blocks, facts; and what a killed run leaves: a lock that nobody holds, a half-written file.
EXPECTED = re.compile(r"[0-9a-f]+\.(parquet|lock)|.+\.json|\..+\.\d+-[0-9a-f]{8}\.partial")
# A lease, and its first name while it is being taken.
LEASE = re.compile(r"[0-9a-f]+\.lock|\.[0-9a-f]+\.lock\.\d+-[0-9a-f]{8}\.partial")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(tmp_path_factory.mktemp("runs")) as made:
        yield made


def command(world: SmallWorld, *more: str) -> list[object]:
    guard = world.saying(", ".join(["token_budget: 512", *more]))
    named = ["--config", guard, "--base", "orig", "--cand", "other", "--tasks", TASKS]
    return ["compare", *named, "--threads", 1, "--json"]


@pytest.fixture
def words(world: SmallWorld) -> list[object]:
    return command(world)


def result(run: Run) -> dict[str, Any]:
    document = json.loads(run.out.read_text())
    return {key: value for key, value in document.items() if key not in VOLATILE}


def journal(path: Path) -> list[tuple[int, str, str]]:
    """(process, "scores" or "kept", which block)."""
    if not path.exists():
        return []
    lines = (line.split(" ", 2) for line in path.read_text().splitlines())
    return [(int(pid), what, block) for pid, what, block in lines]


def scored(path: Path) -> Counter[str]:
    return Counter(block for _, what, block in journal(path) if what == "scores")


@pytest.fixture(scope="module")
def whole(server: Server, world: SmallWorld, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run that nothing interrupts, and how long it took."""
    folder, words, begun = tmp_path_factory.mktemp("whole"), command(world), time.monotonic()
    places = ("--cache-dir", folder / "cache", "--output-path", folder / "out")
    run = server.start([*words, *places], folder / "journal")
    assert run.wait() in (0, 1), run.err.read_text()
    assert len(scored(folder / "journal")) == BLOCKS
    return result(run), time.monotonic() - begun


def test_a_run_killed_at_any_moment_goes_on_and_ends_with_the_same(
    server: Server, world: SmallWorld, whole: Whole, tmp_path: Path
) -> None:
    expected, seconds = whole
    rng = random.Random(SEED)
    for number in range(ROUNDS):
        cache, out, log = (tmp_path / f"{name}{number}" for name in ("cache", "out", "journal"))
        places = ["--cache-dir", cache, "--output-path", out]
        line = [*command(world), *places]
        killed = 0
        while killed < KILLS // ROUNDS:
            run = server.start(line, log)
            time.sleep(rng.uniform(0, seconds))
            run.kill()
            if run.wait() == -signal.SIGKILL:
                killed += 1
            else:  # it ended by itself: less is left to do, or the machine is less busy
                seconds *= 0.8
        seconds, run = whole[1], server.start(line, log)
        assert run.wait() in (0, 1), run.err.read_text()
        assert result(run) == expected
        _check_no_work_was_lost(log)
        left = [path.name for path in cache.rglob("*") if path.is_file()]
        assert [name for name in left if not EXPECTED.fullmatch(name)] == []
        # A run that has a limit of size removes what killed ones left.
        limited = [*command(world, "cache_max_size: 1GB"), *places]
        assert server.start(limited, log).wait() in (0, 1)
        # No lock says whose a half-written about.json or fact is, so that it stays for a day.
        young = [path for path in left_over(cache) if path.suffix == ".partial"]
        assert left_over(cache) == young
        assert [path for path in young if not is_unlocked(path)] == []
        for path in young:
            os.utime(path, (time.time() - 2 * 86_400,) * 2)
        assert server.start(limited, log).wait() in (0, 1)
        assert left_over(cache) == []


def left_over(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.suffix in (".lock", ".partial")]


def is_unlocked(path: Path) -> bool:
    return path.name.startswith(".about.json.") or "facts" in path.parts


def _check_no_work_was_lost(log: Path) -> None:
    """No block is scored again once it was kept; a killed process loses the one it was at."""
    begun: dict[int, list[str]] = {}
    kept: set[str] = set()
    for pid, what, block in journal(log):
        if what == "scores":
            assert block not in kept, "a finished block was scored again"
            begun.setdefault(pid, []).append(block)
        elif block.startswith("divergences"):  # the last of a block's three files
            kept.add(begun[pid][-1])
    for of_process in begun.values():
        assert set(of_process[:-1]) <= kept, "a block was given up before it was kept"
    again = scored(log)
    assert len(again) == len(kept) == BLOCKS
    assert again.total() - BLOCKS <= len(begun) - 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_end_leaves_nothing_half_done(
    server: Server,
    words: list[object],
    whole: Whole,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    log = tmp_path / "journal"
    line = [*words, "--cache-dir", tmp_path / "cache", "--output-path", tmp_path / "out"]
    run = server.start(line, log)
    deadline = time.monotonic() + 500
    while len(journal(log)) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill(number)
    assert run.wait() == 128 + number
    assert "the same command goes on from there" in run.err.read_text()
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    odd = [path for path in left if path.suffix not in (".parquet", ".json")]
    # Python may raise the signal's exception just as a lease is taken: it is nobody's then.
    assert all(LEASE.fullmatch(path.name) for path in odd)
    leases = [Lease.tried(path) for path in odd]
    assert None not in leases
    for lease in filter(None, leases):
        lease.release()
    again = server.start(line, log)
    assert again.wait() in (0, 1)
    _check_no_work_was_lost(log)
    assert result(again) == whole[0]


@pytest.mark.parametrize("budget", [512, 0])
def test_two_runs_on_one_cache_do_each_block_once(
    server: Server,
    world: SmallWorld,
    words: list[object],
    whole: Whole,
    tmp_path: Path,
    budget: int,
) -> None:
    # 0: one measures it, and the other uses that
    words = [*words, "--config", world.saying(f"token_budget: {budget}")]
    log, cache = tmp_path / "journal", tmp_path / "cache"
    outs = [tmp_path / "out0", tmp_path / "out1"]
    runs = [
        server.start([*words, "--cache-dir", cache, "--output-path", out], log, beside=1)
        for out in outs
    ]
    codes = [run.wait() for run in runs]
    assert codes[0] == codes[1]
    assert result(runs[0]) == result(runs[1])
    assert set(scored(log).values()) == {1}
    assert len(scored(log)) == BLOCKS
    workers = {pid for pid, what, _ in journal(log) if what == "scores"}
    assert workers == {run.pid for run in runs}  # both did some of it
    assert not list(cache.rglob("*.lock"))
    assert not list(cache.rglob("*.partial"))
    if budget:
        assert result(runs[0]) == whole[0]


@pytest.mark.parametrize(
    "mode", [("--distributions", "reference"), ("--distributions", "off"), ("--sequential",)]
)
def test_two_runs_of_any_kind_do_each_block_once(
    server: Server, words: list[object], tmp_path: Path, mode: tuple[str, ...]
) -> None:
    log, line = tmp_path / "journal", [*words, *mode, "--output-path", tmp_path / "out"]
    both = [*line, "--cache-dir", tmp_path / "cache"]
    runs = [server.start(both, log, beside=1) for _ in range(2)]
    assert [run.wait() in (0, 1) for run in runs] == [True, True], runs[0].err.read_text()
    assert result(runs[0]) == result(runs[1])
    # A look of documents takes the models in turn; what differs between them is another block.
    assert max(Counter((block, what) for _, what, block in journal(log)).values()) <= 2
    kept = Counter(block for _, what, block in journal(log) if what == "kept")
    assert set(kept.values()) == {1}
    assert len({pid for pid, what, _ in journal(log) if what == "scores"}) == 2
    alone = server.start([*line, "--cache-dir", tmp_path / "other"], tmp_path / "alone")
    assert alone.wait() in (0, 1)
    assert result(alone) == result(runs[0])
    assert {block for _, what, block in journal(tmp_path / "alone") if what == "kept"} == set(kept)


def test_a_run_beside_one_that_is_killed_does_its_work_too(
    server: Server, words: list[object], whole: Whole, tmp_path: Path
) -> None:
    log, cache = tmp_path / "journal", tmp_path / "cache"
    line = [*words, "--cache-dir", cache, "--output-path", tmp_path / "out"]
    doomed, run = server.start(line, log), server.start(line, log, beside=1)
    deadline = time.monotonic() + 500
    while not [pid for pid, _, _ in journal(log) if pid == doomed.pid]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    doomed.kill()
    assert doomed.wait() == -signal.SIGKILL
    assert run.wait() in (0, 1), run.err.read_text()
    assert len(scored(log)) == BLOCKS
    assert scored(log).total() <= BLOCKS + 1
