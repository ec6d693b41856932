"""Starting a worker: every refusal of the system is a clear error that leaves nothing open."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalguard.errors import WorkerError
from evalguard.worker.process import WorkerProcess

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    gc.disable()  # the collector would close files of other tests in the meantime
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) <= before
    gc.enable()


def test_a_log_is_for_this_user_alone(tmp_path: Path) -> None:
    process = WorkerProcess(SLEEP, env={}, log=tmp_path / "logs" / "w.log")
    process.kill()
    assert (tmp_path / "logs" / "w.log").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "reason",
    [
        "RuntimeError: no kernel for a head of 8",
        "(Worker pid=7) ERROR 01-01 [x.py:1] torch.cuda.OutOfMemoryError: 2 GB are missing",
        "error: cannot read model.gguf",
        "FATAL: no such device",
        "json.decoder.JSONDecodeError: Expecting value",
    ],
)
def test_a_log_that_ends_in_a_list_of_leaks_still_says_what_failed(
    tmp_path: Path, reason: str
) -> None:
    lines = ["ValueError: of long ago", *"abc", "loading", reason, "  at x.py:3", reason]
    words = "\n".join([*lines, *(f"leaked function {number}" for number in range(400))])
    command = [sys.executable, "-c", "import sys; print(sys.argv[1], file=sys.stderr)", words]
    process = WorkerProcess(command, env={}, log=tmp_path / "w.log")
    assert process.fate(wait=60) == "exited with code 0"
    told = process.log_tail().splitlines()
    assert told[:2] == ["ValueError: of long ago", reason]
    assert told[2:] == [f"leaked function {number}" for number in range(390, 400)]
    process.kill()


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "w.log").symlink_to(tmp_path / "victim")
    with pytest.raises(WorkerError, match="cannot write the worker's log") as caught:
        WorkerProcess(SLEEP, env={}, log=tmp_path / "w.log")
    assert "--cache-dir" in caught.value.hint
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    "changes", [{"A=B": "x"}, {"A": "x\0y"}, {"A\0": "x"}, {"A": "x" * 10_000_000}]
)
def test_an_environment_that_the_system_refuses_is_an_error(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    with pytest.raises(WorkerError, match="cannot start a worker process"):
        WorkerProcess(SLEEP, env=changes, log=tmp_path / "w.log")


@pytest.mark.parametrize("room", range(5))
def test_too_few_file_descriptors_are_an_error(tmp_path: Path, room: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest numbers that are free, so that only so many can still be opened.
    taken = {int(name) for name in os.listdir("/dev/fd")}
    free = [number for number in range(max(taken) + 10) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[room], hard))
    try:
        with pytest.raises(WorkerError, match="Too many open files"):
            WorkerProcess(SLEEP, env={}, log=tmp_path / "w.log")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
