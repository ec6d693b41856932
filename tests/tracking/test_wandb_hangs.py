"""W&B's own program hangs: it cannot hold up anything."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest
from tracked_examples import example
from wandb_server import Serve

from evalguard.tracking import send_run
from evalguard.tracking.bounds import Bounds


def core_processes() -> list[psutil.Process]:
    """Every wandb-core below this process."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if "wandb-core" in process.name()]


@pytest.mark.slow
def test_a_program_of_wandb_that_stands_still_is_killed_and_the_run_is_kept(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    stopped: list[psutil.Process] = []

    def stop_when_it_sends() -> None:
        while not stopped:
            if server.arrived.requests:
                for process in core_processes():
                    process.suspend()
                    stopped.append(process)
            time.sleep(0.005)

    watcher = threading.Thread(target=stop_when_it_sends, daemon=True)
    watcher.start()
    bounds = Bounds(start=8, init=2, finish=2)
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=bounds)
    watcher.join()
    assert (sent.state, sent.reason) == ("offline", "no answer within 12 s")
    assert not stopped[0].is_running() or stopped[0].status() == psutil.STATUS_ZOMBIE
    assert list((tmp_path / "reports" / "wandb").glob("offline-run-*"))
