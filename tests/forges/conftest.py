"""A GitHub on this machine, and a job of a pull request in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_github import TOKEN, FakeGithub, fake_github


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
