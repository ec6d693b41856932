"""A run at W&B: what arrives at a server, and what an offline run holds."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tracked_examples import example
from wandb_server import ENTITY, KEY, Serve, wandb_server

from evalguard.core.tracked_run import Alert, Sent
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import send_run


def records(sent: Sent) -> list[dict[str, Any]]:
    """An offline run, read back by W&B's own reader."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", sent.place]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in read.stdout.splitlines()]


def of_kind(kind: str, records: list[dict[str, Any]]) -> list[Any]:
    return [record[kind] for record in records if record["type"] == kind]


def test_everything_of_a_run_arrives(serve: Serve, tmp_path: Path, bounds: SendingLimits) -> None:
    server = serve()
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=bounds)
    arrived = server.arrived
    assert (sent.state, sent.reason, sent.next_command) == ("sent", "", "")
    assert sent.place.startswith(f"{server.url}/{ENTITY}/evalguard/runs/")
    run = arrived.run
    assert (run["project"], run["displayName"]) == ("evalguard", "orig vs port")
    assert (run["jobType"], run["groupName"]) == ("compare", "pull request 7")
    assert run["tags"] == ["regressed", "port"]
    assert arrived.config == {"base": {"name": "orig"}, "gate": {"margin": 1.0}}
    (step,) = arrived.history
    assert step["lambada/acc/sigma"] == 1.465
    assert arrived.summary["lambada/acc/outcome"] == "regressed"
    assert arrived.uploaded("media/html/forest") == b"<svg>here</svg>"
    table = json.loads(arrived.uploaded("media/table/moved_documents"))
    assert table == {"columns": ["document", "prompt"], "data": [[7, "A b"]]}
    assert arrived.uploaded("artifact:orig-vs-port/result.json") == b'{"exit_code": 1}'
    assert "artifact:orig-vs-port" in arrived.committed
    (alert,) = arrived.alerts
    assert (alert["title"], alert["severity"]) == ("port regressed", "ERROR")
    assert arrived.complete == [0]
    assert arrived.unknown == []
    names = {Path(path).name for path in arrived.uploads}
    own = {"requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"}
    assert not names & own, "no fact about this machine goes beside the run"
    assert not {"host", "repo", "commit"} & run.keys()
    assert not (tmp_path / "reports").exists(), "nothing is left behind"
    assert not (tmp_path / "wandb").exists()


def test_the_alert_calls_nobody_and_links_nowhere(
    serve: Serve, tmp_path: Path, bounds: SendingLimits
) -> None:
    server = serve()
    hostile = Alert(title="<!channel> & co regressed", text="<http://evil.example|against orig>")
    run = replace(example(tmp_path), alert=hostile, files={})
    send_run("wandb", run, folder=tmp_path / "reports", bounds=bounds)
    (alert,) = server.arrived.alerts
    assert alert["title"] == "\u2039!\u200bchannel> & co regressed"
    assert alert["text"] == "\u2039http:\u200b//evil.example|against orig>"


def test_an_offline_run_can_be_read_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bounds: SendingLimits
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    sent = send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=bounds)
    assert (sent.state, sent.reason) == ("offline", "")
    assert sent.place.startswith("reports/wandb/offline-run-")
    assert sent.next_command == f"wandb sync {sent.place}"
    found = records(sent)
    (run,) = of_kind("run", found)
    assert (run["display_name"], run["job_type"]) == ("orig vs port", "compare")
    assert run["config"]["update"]["gate"] == {"margin": 1.0}
    (step,) = of_kind("history", found)
    assert step["item"]["lambada/acc/sigma"] == 1.465
    hidden = [one["name"] for one in of_kind("metric", found) if one["options"]["hidden"]]
    assert hidden == ["gate/exit_code"], "no chart of its own; W&B takes no name with a star"
    (alert,) = of_kind("alert", found)
    assert alert["title"] == "port regressed"
    artifacts = {one["name"]: one for one in of_kind("artifact", found)}
    (file,) = artifacts["orig-vs-port"]["manifest"]["contents"]
    copy = Path(file["local_path"])
    assert copy.is_relative_to(tmp_path / "reports" / "wandb"), "beside the run folder"
    assert copy.read_text(encoding="utf-8") == '{"exit_code": 1}'


@pytest.mark.slow
def test_the_command_that_is_named_sends_an_offline_run_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bounds: SendingLimits
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = example(tmp_path)
    sent = send_run("wandb", run, folder=tmp_path / "reports", bounds=bounds)
    (tmp_path / "result.json").unlink()  # copies went with the run
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        words = shlex.split(sent.next_command)
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
    assert server.arrived.run["displayName"] == "orig vs port"
    assert server.arrived.history[0]["lambada/acc/sigma"] == 1.465
    assert server.arrived.uploaded("artifact:orig-vs-port/result.json") == b'{"exit_code": 1}'
    assert [alert["title"] for alert in server.arrived.alerts] == ["port regressed"]


@pytest.mark.slow
def test_variables_of_wandb_are_respected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bounds: SendingLimits
) -> None:
    server = serve()
    for name, value in (
        ("PROJECT", "own"), ("ENTITY", "b-team"), ("RUN_GROUP", "mine"), ("TAGS", "x,y"),
        ("DIR", str(tmp_path)), ("DATA_DIR", str(tmp_path / "data")),
    ):  # fmt: skip
        monkeypatch.setenv(f"WANDB_{name}", value)
    send_run("wandb", example(tmp_path), folder=tmp_path / "reports", bounds=bounds)
    run = server.arrived.run
    assert (run["project"], run["entity"], run["groupName"]) == ("own", "b-team", "mine")
    assert run["tags"] == ["regressed", "port", "x", "y"]
    assert list((tmp_path / "wandb").glob("run-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "state", "reason"),
    [
        ({}, "offline", "No API key"),
        ({"WANDB_MODE": "disabled"}, "failed", "switched off"),
        ({"WANDB_API_KEY": "short"}, "offline", "API key"),
    ],
)
def test_without_a_login_nothing_is_asked_and_the_run_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    bounds: SendingLimits,
    variables: dict[str, str],
    state: str,
    reason: str,
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sent = send_run("wandb", example(tmp_path), folder=tmp_path, bounds=bounds)
    assert sent.state == state
    assert reason.lower() in sent.reason.lower()
