"""W&B gets what nobody asked for only where somebody set it up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalguard.engine.tracker_choice import choose_sinks, wandb_is_configured
from evalguard.errors import UsageError


def log_in(folder: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    file = folder / "netrc"
    file.write_text(f"machine {host}\n  login user\n  password {'0' * 40}\n", encoding="utf-8")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))


def test_nothing_is_configured_by_itself() -> None:
    assert not wandb_is_configured()
    assert choose_sinks(()) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB_API_KEY", "0" * 40), ("WANDB_PROJECT", "ports"), ("WANDB_IDENTITY_TOKEN_FILE", "f")],
)
def test_a_variable_configures_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert choose_sinks(()) == ("wandb",)


@pytest.mark.parametrize("mode", ["online", "offline", "dryrun"])
def test_a_mode_alone_configures_nothing(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    assert choose_sinks(()) == ()
    assert choose_sinks(["wandb"]) == ("wandb",)


def test_a_project_of_a_settings_file_configures_it(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()  # as `wandb init` leaves it
    (tmp_path / "wandb/settings").write_text("[default]\nproject = ports\n")
    assert choose_sinks(()) == ("wandb",)


def test_disabled_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert choose_sinks(()) == ()


def test_a_login_counts_for_its_own_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log_in(tmp_path, monkeypatch, "api.wandb.ai")
    assert wandb_is_configured()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example:8443")
    assert not wandb_is_configured()
    log_in(tmp_path, monkeypatch, "wandb.example")
    assert wandb_is_configured()


def test_the_server_of_the_settings_file_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log_in(tmp_path, monkeypatch, "wandb.example")
    assert not wandb_is_configured()
    (tmp_path / "settings").write_text("[default]\nbase_url = https://wandb.example\n")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    assert wandb_is_configured()


def test_a_broken_netrc_is_no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_bytes(b"machine \xff\xfe nonsense")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not wandb_is_configured()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["none"], ()),
        (["mlflow", "wandb", "mlflow"], ("wandb", "mlflow")),
        (["trackio"], ("trackio",)),
    ],
)
def test_what_is_named_is_chosen(
    monkeypatch: pytest.MonkeyPatch, names: list[str], chosen: Any
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert choose_sinks(names) == chosen


def test_git_bisect_sends_only_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert choose_sinks((), unasked=False) == ()
    assert choose_sinks(["wandb"], unasked=False) == ("wandb",)


@pytest.mark.parametrize(
    ("names", "said"),
    [(["wanbd"], "did you mean 'wandb'?"), (["none", "mlflow"], "none stands beside mlflow")],
)
def test_other_names_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_sinks(names)
    assert said in str(refused.value)


OPEN = """
import os, sys, wandb
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tracked_examples import example
from evalguard.publish.tracking import send_run
from evalguard.engine.tracker_choice import wandb_is_configured
assert not wandb_is_configured()
run = wandb.init(project="training", config={"lr": 0.1}, mode=os.environ["MODE"])
assert wandb_is_configured()
for step in range(2):
    run.log({"loss": 1.0 - step})
    sent = send_run("wandb", example(Path(".")), folder=Path("."))
    assert sent.state == "sent", sent
assert wandb.run is run, "it is left open"
run.log({"loss": 0.5})
run.finish()
"""


@pytest.mark.slow
def test_a_run_that_is_open_gets_it_and_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODE", "offline")
    command = [sys.executable, "-c", OPEN, str(Path(__file__).parent.parent)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    read = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", "--summary", str(folder)]
    found = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)
    assert (found["project"], found["state"]) == ("training", "finished")
    assert found["summary"]["loss"] == 0.5
    assert found["summary"]["evalguard/lambada/acc/sigma"] == 1.465
    assert found["summary"]["evalguard/state"] == "regressed"
    assert found["config"]["lr"] == 0.1
    assert found["config"]["evalguard"]["gate"] == {"margin": 1.0}
    assert found["step"] == 4
