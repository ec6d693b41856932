"""Nothing of this machine's own trackers and forges; a GitHub here, and a job of a pull request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_github import TOKEN, FakeGithub, fake_github
from wandb_server import KEY, Serve, Trouble, WandbServer, wandb_server

from evalguard.publish.sending_job import SendingLimits


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
def bounds() -> SendingLimits:
    """For what is to arrive: a slow machine under load does all of it in that time."""
    return SendingLimits(start=120, init=60, finish=120)


@pytest.fixture
def short_bounds() -> SendingLimits:
    """For what never answers; a slow machine under load still starts a tracker in that time."""
    return SendingLimits(start=120, init=4, finish=6)


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


@pytest.fixture
def github() -> Iterator[FakeGithub]:
    with fake_github() as running:
        yield running


@pytest.fixture
def environment(github: FakeGithub, tmp_path: Path) -> dict[str, str]:
    """What GitHub Actions sets for a job of pull request 7."""
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    return {
        "GITHUB_API_URL": github.address,
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_REPOSITORY": "org/repo",
        "GITHUB_RUN_ID": "123",
        "GITHUB_SERVER_URL": "https://github.example",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_TOKEN": TOKEN,
    }
