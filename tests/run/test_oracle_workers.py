"""Probes in worker processes: what dies takes only itself, and a killed bisection goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_world import SETTINGS, Port, compared, write_guard

import evalguard
from evalguard.bisect.oracle.model_oracle import ModelOracle
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.core.question import Untestable
from evalguard.errors import EvaluationError

pytestmark = pytest.mark.nightly

HOOKS = Path(__file__).parent / "bisection_hooks.py"
MEMORY = HOOKS.with_name("memory_hook.py")


@pytest.fixture
def world(tiny_llama: Path, task_folder: Path, tmp_path: Path) -> Callable[..., Port]:
    def made(*hooks: str, **given: Any) -> Port:
        settings = dict(SETTINGS)
        for hook in hooks:
            file = MEMORY if hook == "fills_the_memory" else HOOKS
            target = f"call:{file}:{hook}"
            settings[hook] = f'{{reference: false, candidate: true, target: "{target}"}}'
        guard = write_guard(tmp_path, tiny_llama, task_folder, settings)
        return compared(guard, tmp_path / "cache", allow_code=True, **given)

    return made


def search(oracle: ModelOracle) -> Any:
    return find_culprits(
        oracle,
        oracle.settings,
        margin=oracle.scale.margin(1.0),
        yardstick=oracle.scale.yardstick,
        seed=3,
        unit=oracle.scale.sigma,
    )


def test_a_probe_that_dies_takes_only_itself(world: Callable[..., Port]) -> None:
    ends = {
        "exits": ("crashed", "exited with code 7 while loading"),
        "aborts": ("crashed", "was killed by SIGABRT"),
        "runs_out": ("out_of_memory", "MemoryError"),
    }
    port = world(*ends)
    with port.oracle(runner="workers") as oracle:
        block = oracle.blocks[0]
        asked = [*({hook} for hook in ends), {*ends, "gain"}]
        *dead, alive = oracle.measure_all([(frozenset(names), block) for names in asked])
        for (hook, (kind, reason)), found in zip(ends.items(), dead, strict=True):
            assert isinstance(found, Untestable), hook
            assert found.kind == kind
            assert reason in found.reason
        assert isinstance(alive, np.ndarray)
        with pytest.raises(Untestable):
            oracle.measure(frozenset({"exits"}), block)


def test_nobody_is_blamed_where_memory_holds_one_model_and_two_are_asked(
    world: Callable[..., Port],
) -> None:
    port, said = world("fills_the_memory", use_cache=False), list[str]()
    with port.oracle(runner="workers", jobs=2, say=said.append) as oracle:
        asked = [{"fills_the_memory"}, {"fills_the_memory", "eps"}]
        found = oracle.measure_all([(frozenset(names), oracle.blocks[0]) for names in asked])
    assert all(isinstance(one, np.ndarray) for one in found)
    assert any("from now on one model is asked at a time" in line for line in said)


def test_a_search_goes_on_where_a_probe_ends_its_process(world: Callable[..., Port]) -> None:
    port = world("exits")
    with port.oracle(runner="workers") as oracle:
        found = search(oracle)
    assert found.status == "minimal"
    assert [culprit.name for culprit in found.culprits] == ["gain"]


def test_a_probe_that_hangs_is_ended(world: Callable[..., Port]) -> None:
    port, found = world("hangs"), None
    for seconds in (15, 60, 240):  # a busy machine needs longer for what does not hang
        hasty = replace(port, options=replace(port.options, timeout=float(seconds)))
        with contextlib.suppress(EvaluationError), hasty.oracle(runner="workers") as oracle:
            with pytest.raises(Untestable, match=f"gave no answer within {seconds} s") as ended:
                oracle.measure(frozenset({"hangs"}), oracle.blocks[0])
            assert ended.value.kind == "timed_out"
            (found,) = oracle.measure_all([(frozenset({"eps"}), oracle.blocks[0])])
        if isinstance(found, np.ndarray):
            break
    assert isinstance(found, np.ndarray)


def test_any_number_of_workers_gives_the_same_numbers(world: Callable[..., Port]) -> None:
    port = world(use_cache=False)
    answers = []
    for jobs in (1, 3):
        with port.oracle(runner="workers", jobs=jobs) as oracle:
            everything = np.arange(oracle.n_documents)
            answers.append(
                oracle.measure_all(
                    [(frozenset(names), everything) for names in ((), ("gain",), ("eps", "scale"))]
                )
            )
    for one, other in zip(*answers, strict=True):
        assert np.array_equal(one, other)  # type: ignore[arg-type]


_SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {pipeline!r}]
import evalguard.engine.loading.edited_model
evalguard.engine.loading.edited_model.measure_budget = lambda _: 1024
from oracle_world import compared
from test_oracle_workers import search
folder = Path(sys.argv[1])
port = compared(folder / "guard.yaml", folder / "cache")
with port.oracle(runner="workers", jobs=int(sys.argv[2])) as it:
    found = search(it)
print(found.status, [culprit.name for culprit in found.culprits], flush=True)
print(found, flush=True)
"""


def start(folder: Path, jobs: int) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    script = _SCRIPT.format(tests=str(here.parent), pipeline=str(here))
    checkout = str(Path(evalguard.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": checkout},
    )


def finished(folder: Path) -> dict[str, int]:
    """Blocks that are kept, and when each was written."""
    kept = (folder / "cache" / "scores").rglob("*.parquet")
    return {str(path): path.stat().st_ino for path in kept if not path.name.startswith(".")}


def until(folder: Path, process: subprocess.Popen[str], blocks: int) -> None:
    while len(finished(folder)) < blocks and process.poll() is None:
        time.sleep(0.02)


def test_a_killed_bisection_gives_the_same_answer_and_repeats_no_probe(
    world: Callable[..., Port], tmp_path: Path
) -> None:
    port = world()
    with port.oracle(runner="workers") as oracle:
        expected = search(oracle)
    # The score cache of the bisection so far would answer everything.
    for file in (tmp_path / "cache" / "scores").rglob("*.parquet"):
        file.unlink()
    kept: dict[str, int] = {}
    for more in (3, 9, 14):
        process = start(tmp_path, 1)
        until(tmp_path, process, len(kept) + more)
        process.kill()
        process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0)  # 0: it was done before its time
        now = finished(tmp_path)
        assert {name: now[name] for name in kept} == kept  # not written once more
        kept = now
    process = start(tmp_path, 1)
    said = process.communicate()[0].splitlines()
    assert process.returncode == 0
    assert said[0] == f"minimal {[culprit.name for culprit in expected.culprits]}"
    assert said[1] == str(expected)
    now = finished(tmp_path)
    assert {name: now[name] for name in kept} == kept


def test_ctrl_c_ends_all_workers_and_loses_no_finished_block(
    world: Callable[..., Port], tmp_path: Path
) -> None:
    world(use_cache=False)
    process = start(tmp_path, 2)
    while not workers_of(process.pid) and process.poll() is None:
        time.sleep(0.02)
    until(tmp_path, process, len(finished(tmp_path)) + 2)
    workers = workers_of(process.pid)
    kept = finished(tmp_path)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=500)[0].splitlines()
    assert said[0].startswith("stopped")
    assert workers
    deadline = time.monotonic() + 120.0
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if is_alive(pid)]
    now = finished(tmp_path)
    assert {name: now[name] for name in kept} == kept


def workers_of(pid: int) -> list[int]:
    """Not what else a process starts: libraries ask others about the machine, for a moment."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                if b"evalguard.engine.worker_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
