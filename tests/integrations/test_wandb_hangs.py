"""W&B's own program hangs: it cannot hold up anything."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil
import pytest
from tracked_examples import example
from wandb_server import Serve, WandbServer

from evalguard.core.tracked_run import Sent
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import send_run


def core_processes() -> list[psutil.Process]:
    """Every wandb-core below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            if "wandb-core" in process.name():
                found.append(process)
    return found


def sent_with_a_stopped_program(
    server: WandbServer, folder: Path, bounds: SendingLimits
) -> tuple[Sent, list[psutil.Process]]:
    """Send a run whose wandb-core is stopped after its first request; the answer, and the core."""
    before = server.arrived.requests
    stopped: list[psutil.Process] = []
    over = threading.Event()

    def stop_when_it_sends() -> None:
        while not stopped and not over.wait(0.005):
            for process in core_processes() if server.arrived.requests > before else ():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
                    stopped.append(process)

    watcher = threading.Thread(target=stop_when_it_sends, daemon=True)
    watcher.start()
    sent = send_run("wandb", example(folder), folder=folder / "reports", bounds=bounds)
    over.set()
    watcher.join()
    return sent, stopped


def gone_soon(process: psutil.Process) -> bool:
    """A killed process ends when it gets a processor, not at once."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("start", [8, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_program_of_wandb_that_stands_still_is_killed_and_the_run_is_kept(
    serve: Serve, tmp_path: Path, start: int
) -> None:
    """Whether evalguard gives up on both first, or W&B's client on its program."""
    server = serve()
    for seconds in (start, 4 * start):  # a slow machine needs longer to get to a first request
        bounds = SendingLimits(start=seconds, init=2, finish=4)
        sent, stopped = sent_with_a_stopped_program(server, tmp_path, bounds)
        if stopped and sent.state == "offline":
            break
    assert sent.state == "offline", sent.reason
    assert sent.reason
    assert stopped
    assert [process for process in stopped if not gone_soon(process)] == []
    assert list((tmp_path / "reports" / "wandb").glob("offline-run-*"))
