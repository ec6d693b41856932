"""Actors of a Ray cluster give the verdict of one process, whatever is lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_world import SmallWorld, run_here

from evalguard.page.progress import ProgressLine
from evalguard.worker.ray_cluster import close_clusters

# Of 260 MB, so that `make test` goes without it; `make test-slow`, which CI runs, installs it.
pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

VOLATILE = {"created", "run_folder", "command", "resources", "checksum"}


@pytest.fixture(autouse=True)
def nothing_left_of_ray() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    close_clusters()
    deadline = time.monotonic() + 300
    while {child.pid for child in psutil.Process().children(recursive=True)} - before:
        assert time.monotonic() < deadline, "processes of Ray are left"
        time.sleep(0.1)


def command(world: SmallWorld, folder: Path, *more: object) -> list[object]:
    guard = world.saying("token_budget: 512")
    named = ["--config", guard, "--base", "orig", "--cand", "sharp", "--tasks", "sw_long"]
    places = ["--cache-dir", folder / "cache", "--output-path", folder / "out"]
    alike = ["--threads", 1, "--distributions", "off", "--json"]
    return ["compare", *named, *places, *alike, *more]


def result(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in VOLATILE}


def actors() -> list[psutil.Process]:
    """Processes that hold a worker, of any node that was started from here."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.Error:
            continue
        if words and words[0].startswith("ray::ActorWorker"):
            found.append(child)
    return found


def at_block(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> list[int]:
    """Do something when so many blocks were scored; what was shown as scored."""
    advance, shown = ProgressLine.advance, list[int]()

    def noticed(self: ProgressLine, documents: int, *, cached: bool = False) -> None:
        advance(self, documents, cached=cached)
        shown.append(documents)
        if len(shown) == number:
            act()

    monkeypatch.setattr(ProgressLine, "advance", noticed)
    return shown


def test_a_comparison_and_its_bisection_are_those_of_one_process_though_an_actor_is_killed(
    world: SmallWorld,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = ["--bisect", "always"]
    alone = run_here(command(world, tmp_path / "one", *searched), capfd)
    killed: list[int] = []

    def kill_one() -> None:
        victim = actors()[0]
        killed.append(victim.pid)
        victim.kill()

    at_block(monkeypatch, 3, kill_one)
    run = run_here(
        command(world, tmp_path / "ray", "--execution", "ray?actors=2", *searched), capfd
    )
    assert run.code == alone.code == 1, run.err
    assert len(killed) == 1
    for one, other in zip(
        run.document["resources"]["answers"], alone.document["resources"]["answers"], strict=True
    ):
        assert one == other
        assert (one["kept"], one["tokens"] > 0) == (0, True)
    assert run.document["resources"]["tokens_per_second"] > 0.0
    mine, theirs = result(run.document), result(alone.document)
    found, expected = mine.pop("bisect"), theirs.pop("bisect")
    assert mine == theirs
    assert found["culprits"] == expected["culprits"]
    assert found["status"] == expected["status"]
    assert [one["setting"] for one in found["culprits"]] == ["gain"]
    assert "17 blocks on 2 Ray actors" in run.err or "16 blocks on 2 Ray actors" in run.err


@pytest.mark.nightly
def test_what_a_lost_machine_was_asked_another_one_answers_and_the_cluster_stays(
    world: SmallWorld,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.cluster_utils import Cluster

    quiet = ["--bisect", "never"]
    alone = run_here(command(world, tmp_path / "one", *quiet), capfd)
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        shown = at_block(
            monkeypatch, 3, lambda: cluster.remove_node(nodes[1], allow_graceful=False)
        )
        words = command(world, tmp_path / "ray", "--execution", "ray://auto?actors=2", *quiet)
        run = run_here(words, capfd)
        assert run.code == alone.code == 1, run.err
        assert result(run.document) == result(alone.document)
        assert len(shown) > 3
        close_clusters()
        left = cluster.list_all_nodes()
        assert len(left) == 2
        assert all(node.any_processes_alive() for node in left)
        assert actors() == []
    finally:
        close_clusters()
        cluster.shutdown()


def test_ctrl_c_ends_what_was_started_and_keeps_what_was_scored(
    world: SmallWorld, tmp_path: Path
) -> None:
    words = command(world, tmp_path, "--execution", "ray?actors=2", "--bisect", "never")
    with (tmp_path / "err").open("w+b") as said:
        run = subprocess.Popen(
            [sys.executable, "-m", "evalguard", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 600
        cache = tmp_path / "cache" / "scores"
        while not list(cache.rglob("*.parquet")):  # the first block is kept
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.01)
        family = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        code = run.wait(timeout=600)
        said.seek(0)
        text = said.read().decode()
    assert code in (130, 1), text  # 1: it was done already
    _, alive = psutil.wait_procs(family, timeout=300)
    assert alive == []
    if code == 130:
        assert "finished blocks of documents are kept" in text


@pytest.mark.nightly
def test_distributions_are_scored_by_all_actors_and_are_those_of_one_process(
    world: SmallWorld,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    limited = ["--distributions", "reference", "--bisect", "never"]
    alone = run_here(command(world, tmp_path / "one", *limited), capfd)
    run = run_here(command(world, tmp_path / "ray", "--execution", "ray?actors=2", *limited), capfd)
    assert run.code == alone.code, run.err
    assert run.document["distributions"][0]["kl"]["value"] > 0.0
    assert result(run.document) == result(alone.document)
    assert run.err.count("blocks on 2 Ray actors") == 2
    assert run.document["resources"]["answers"] == alone.document["resources"]["answers"]
    file = tmp_path / "base.parquet"
    run_here(command(world, tmp_path / "ray", "--save-reference", file, *limited), capfd)
    beside = ["--base", file, "--execution", "ray?actors=2", *limited]
    again = run_here(command(world, tmp_path / "file", *beside), capfd)
    assert again.err.count("blocks on 2 Ray actors") == 1, again.err
    assert again.document["distributions"] == alone.document["distributions"]


@pytest.mark.parametrize("amount", ["num_gpus=1000", "num_cpus=1&memory=1000000000000000"])
def test_an_actor_that_this_machine_has_no_room_for_is_not_waited_for(
    world: SmallWorld, tmp_path: Path, capfd: pytest.CaptureFixture[str], amount: str
) -> None:
    run = run_here(
        command(world, tmp_path / "one", "--execution", f"ray?actors=1&{amount}", "--quiet"), capfd
    )
    assert run.code == 3
    assert "has room for one more actor" in run.out + run.err
