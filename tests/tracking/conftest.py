"""Nothing of this machine's own trackers: no key, no login, no settings, no open run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb_server import KEY, Serve, Trouble, WandbServer, wandb_server

from evalguard.tracking.bounds import Bounds


@pytest.fixture(autouse=True)
def no_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder without any tracker's variables."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "GITHUB_", "GITLAB_", "CI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no-settings"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bounds() -> Bounds:
    """For what is to arrive: a slow machine under load does all of it in that time."""
    return Bounds(start=120, init=60, finish=120)


@pytest.fixture
def short_bounds() -> Bounds:
    """For what never answers; a slow machine under load still starts a tracker in that time."""
    return Bounds(start=120, init=4, finish=6)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server that this process is logged in to; one per test."""
    servers = []

    def started(trouble: Trouble | None = None) -> WandbServer:
        running = wandb_server(trouble)
        servers.append(running)
        server = running.__enter__()
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        return server

    yield started
    for running in servers:
        running.__exit__(None, None, None)
