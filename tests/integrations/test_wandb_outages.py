"""W&B in trouble: in bounded time the run is on this machine, whole, and can be sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tracked_examples import example
from wandb_server import Serve, Trouble

from evalguard.core.tracked_run import Sent
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import send_run

pytestmark = pytest.mark.slow

# On a slow machine W&B's time may be up before it has heard anything.
TIME_WAS_UP = ("Timed out", "did not respond")


def check_kept(sent: Sent) -> None:
    """The run is here, and nothing of it was lost."""
    assert sent.state == "offline", sent.reason
    assert sent.reason
    assert sent.next_command == f"wandb sync {sent.place}"
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", sent.place]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"lambada/acc/sigma":1.465' in read.stdout
    assert '"exit":{"exit_code":0' in read.stdout


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (Trouble(status=401), "trouble"),
        pytest.param(Trouble(status=403), "trouble", marks=pytest.mark.nightly),
        (Trouble(status=429), "HTTP 429"),
        pytest.param(Trouble(status=500), "HTTP 500", marks=pytest.mark.nightly),
        (Trouble(hangs=True), "Timed out"),
        (Trouble(drops=True), "EOF"),
    ],
)
def test_a_server_that_refuses_or_hangs_costs_seconds_and_no_data(
    serve: Serve, tmp_path: Path, short_bounds: SendingLimits, trouble: Trouble, reason: str
) -> None:
    serve(trouble)
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=short_bounds)
    check_kept(sent)
    assert any(said in sent.reason for said in (reason, *TIME_WAS_UP))


def test_nobody_listening_costs_no_data(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, tmp_path: Path, short_bounds: SendingLimits
) -> None:
    serve()
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=short_bounds)
    check_kept(sent)
    assert any(said in sent.reason for said in ("refused", *TIME_WAS_UP))


@pytest.mark.nightly  # W&B tries for minutes
@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(hangs=True, after=3),
        Trouble(drops=True, after=6),
        Trouble(status=500, after=6),
        Trouble(hangs=True, after=15),
    ],
)
def test_a_server_that_dies_in_the_middle_of_a_run_costs_no_data(
    serve: Serve, tmp_path: Path, short_bounds: SendingLimits, trouble: Trouble
) -> None:
    server = serve(trouble)
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=short_bounds)
    if sent.state == "sent":  # all had arrived by then, or W&B asked once too often to matter
        assert server.arrived.complete == [0]
    else:
        check_kept(sent)


def test_a_client_that_dies_costs_no_data(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, tmp_path: Path, short_bounds: SendingLimits
) -> None:
    """A server that answers nonsense makes W&B's own program fall over."""
    server = serve()
    monkeypatch.setattr("wandb_server._graphql", lambda *_: {"data": {}})
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=short_bounds)
    check_kept(sent)
    assert server.arrived.runs == {}
