"""``serve:`` in a guard file: evalguard starts the server, searches its flags, and leaves none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from small_world import SmallWorld, run_here

import evalguard

STUB = Path(__file__).parent.parent / "stub_server.py"
SHARP: dict[str, Any] = {
    "sharpness": {"reference": 1.0, "candidate": 2.0, "target": "serve.sharpness"},
    "pace": {"reference": None, "candidate": 3, "target": "serve.pace"},
    "variable": {"reference": None, "candidate": "1", "target": "serve.env.STUB"},
}

Guard = Callable[..., list[Any]]


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """Writes a guard file of two served models; returns the words of the comparison."""
    monkeypatch.setenv("STUB_STARTS", str(tmp_path / "starts"))

    def write(
        *words: str,
        of: dict[str, Any] | None = None,
        candidate: dict[str, Any] | None = None,
        **more: Any,
    ) -> list[Any]:
        model = {
            "model": "local-completions",
            "model_args": {
                "model": "stub",
                "tokenizer": str(world.models["llama"]),
                "tokenizer_backend": "huggingface",
                "max_retries": 1,
                "max_length": 48,
            },
            "serve": {
                "command": [
                    "python", str(STUB), "--port", "{port}",
                    "--model", str(world.models["llama"]), "--sharpness=1.0", *words,
                ],
                "url": "http://127.0.0.1:{port}/v1/completions",
            },
            **(of or {}),
        }  # fmt: skip
        told = {
            "models": {"served": model, "port": {"extends": "served", **(candidate or {})}},
            "tasks": ["sw_word"],
            "include_path": [str(world.tasks)],
            **more,
        }
        file = tmp_path / "guard.yaml"
        file.write_text(yaml.safe_dump(told), encoding="utf-8")
        return [
            "compare", "--config", file, "--base", "served", "--cand", "port", "--json",
            "--output-path", tmp_path / "reports", "--cache-dir", tmp_path / "cache", "--quiet",
        ]  # fmt: skip

    return write


def starts(folder: Path) -> list[str]:
    file = folder / "starts"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def servers(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in starts(folder)]


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def all_gone(folder: Path) -> bool:
    return not any(map(psutil.pid_exists, servers(folder)))


def test_two_models_with_equal_servers_share_one(guard: Guard, tmp_path: Path, capfd) -> None:
    done = run_here(guard(), capfd)
    assert done.code == 0, done.out + done.err
    (perplexity,) = [m for m in done.document["comparisons"] if m["metric"] == "perplexity"]
    assert perplexity["bit_identical"]
    assert len(starts(tmp_path)) == 1
    assert all_gone(tmp_path)
    (log,) = (tmp_path / "cache" / "logs").glob("server-*.log")
    assert "stub server with" in log.read_text(encoding="utf-8")


def workers(folder: Path) -> list[Path]:
    """Logs of processes that a model had to itself."""
    return list((folder / "cache" / "logs").glob("worker-*"))


@pytest.mark.parametrize("place", [{"worker": "always"}, {"execution": "ray", "actors": 2}])
def test_what_asks_a_server_has_no_process_of_its_own(
    place: dict[str, Any], guard: Guard, tmp_path: Path, capfd
) -> None:
    if "execution" in place:
        pytest.importorskip("ray")
    done = run_here(guard(run=place), capfd)
    assert done.code == 0, done.out + done.err
    assert not workers(tmp_path)
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


@pytest.mark.slow
def test_a_flag_of_the_server_is_named_by_a_bisection(guard: Guard, tmp_path: Path, capfd) -> None:
    words = guard(candidate={"settings": SHARP}, run={"bisect_jobs": 2})
    done = run_here([*words, "--bisect", "auto"], capfd)
    assert done.code == 1, done.out + done.err
    assert not workers(tmp_path)
    bisect = done.document["bisect"]
    assert [one["setting"] for one in bisect["culprits"]] == ["sharpness"], bisect
    assert all_gone(tmp_path)
    # what was started is what was asked for: every flag in its place, the variable set
    assert any("--sharpness=2.0 --pace 3 | 1" in line for line in starts(tmp_path))
    assert any("--sharpness=1.0 --pace 3 | 1" in line for line in starts(tmp_path))


@pytest.mark.slow
def test_a_bisection_whose_reference_the_server_refuses_says_so_and_keeps_the_verdict(
    guard: Guard, tmp_path: Path, capfd
) -> None:
    settings = {
        "sharpness": SHARP["sharpness"],
        "cache": {"reference": "fp8", "candidate": None, "target": "serve.kv-cache-dtype"},
    }
    words = [*guard(candidate={"settings": settings}), "--bisect", "auto"]
    done = run_here(words, capfd)
    assert done.code == 1, done.out + done.err
    assert done.document["bisect"] is None
    assert "unrecognized arguments: --kv-cache-dtype fp8" in done.document["bisect_reason"]
    assert all_gone(tmp_path)


@pytest.mark.slow
def test_a_value_that_the_server_refuses_beside_another_is_left_out_of_the_search(
    guard: Guard, tmp_path: Path, capfd
) -> None:
    settings = {
        "sharpness": SHARP["sharpness"],
        "pace": {"reference": 1, "candidate": 9, "target": "serve.pace"},
    }
    words = guard("--no-pace-alone", candidate={"settings": settings})
    done = run_here([*words, "--bisect", "auto"], capfd)
    assert done.code == 1, done.out + done.err
    assert any("--sharpness=1.0 --no-pace-alone --pace 9" in line for line in starts(tmp_path))
    bisect = done.document["bisect"]
    named = {one["setting"] for one in bisect["culprits"]}
    assert "sharpness" in named, bisect
    assert all_gone(tmp_path)


@pytest.mark.slow
def test_probes_that_differ_in_nothing_the_server_reads_share_it(
    guard: Guard, tmp_path: Path, capfd
) -> None:
    settings = {
        "sharpness": SHARP["sharpness"],
        "seed": {"reference": 1234, "candidate": 5, "target": "model_args.seed"},
    }
    done = run_here([*guard(candidate={"settings": settings}), "--bisect", "auto"], capfd)
    assert done.code == 1, done.out + done.err
    assert [one["setting"] for one in done.document["bisect"]["culprits"]] == ["sharpness"]
    probes = done.document["bisect"]["probes"]
    assert probes >= 2
    assert len(starts(tmp_path)) == 2  # sharp and not, from the comparison to the last probe


def test_a_variable_of_the_server_is_a_setting(guard: Guard, capfd) -> None:
    setting = {"reference": None, "candidate": 2, "target": "serve.env.STUB_SHARPNESS"}
    done = run_here(
        [*guard(candidate={"settings": {"louder": setting}}), "--bisect", "never"], capfd
    )
    assert done.code == 1, done.out + done.err


@pytest.mark.parametrize("vouched", [False, True])
def test_scores_of_a_script_that_serves_are_kept_where_a_revision_vouches_for_what_it_reads(
    vouched: bool, guard: Guard, tmp_path: Path, capfd
) -> None:
    revision = {"revision": "of today"} if vouched else {}
    words = guard(of=revision, candidate={"settings": SHARP, **revision})
    words += ["--bisect", "never"]
    first = run_here(words, capfd)
    logs = set((tmp_path / "cache" / "logs").iterdir())
    assert all("\nasked" in log.read_text(encoding="utf-8") for log in logs)
    second = run_here(words, capfd)
    assert first.code == second.code == 1
    assert first.document["comparisons"] == second.document["comparisons"]
    later = set((tmp_path / "cache" / "logs").iterdir()) - logs
    assert len(logs) == len(later) == 2
    assert all(("\nasked" in log.read_text(encoding="utf-8")) != vouched for log in later)


def test_a_flag_that_the_server_refuses_is_an_error_with_its_words(guard: Guard, capfd) -> None:
    setting = {"reference": None, "candidate": "fp8", "target": "serve.kv-cache-dtype"}
    done = run_here(guard(candidate={"settings": {"cache": setting}}), capfd)
    assert done.code == 3
    message = done.document["error"]["message"]
    assert "the server of 'port' exited with code 2 before it was ready" in message
    assert "unrecognized arguments: --kv-cache-dtype fp8" in message


def test_a_server_that_dies_while_it_is_asked_is_an_error_with_its_words(
    guard: Guard, tmp_path: Path, capfd
) -> None:
    done = run_here(guard("--die-after", "0"), capfd)
    assert done.code == 3
    message = done.document["error"]["message"]
    assert "exited with code 9 while it was asked" in message
    assert "the stub runs out of memory" in done.document["error"]["quotes"][0]
    assert all_gone(tmp_path)


def test_a_guard_file_that_was_only_found_starts_no_server(
    guard: Guard, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = guard()
    (tmp_path / "guard.yaml").rename(tmp_path / "evalguard.yaml")
    monkeypatch.chdir(tmp_path)
    done = run_here([words[0], *words[3:]], capfd)
    assert done.code == 2
    assert "starts the server python" in done.document["error"]["message"]
    assert starts(tmp_path) == []


def test_a_setting_of_a_server_needs_one(guard: Guard, world: SmallWorld, capfd) -> None:
    model = {"model_args": {"pretrained": str(world.models["llama"])}, "settings": SHARP}
    words = guard(models={"served": model, "port": {"extends": "served"}})
    done = run_here(words, capfd)
    assert done.code == 2
    assert "'served' starts none" in done.document["error"]["message"]


def test_a_model_that_asks_no_server_starts_none(guard: Guard, world: SmallWorld, capfd) -> None:
    words = guard(candidate={"model": "hf"})
    done = run_here(words, capfd)
    assert done.code == 2
    assert "model type 'hf' asks none" in done.document["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly),  # below, with a verdict
        (signal.SIGTERM, 143),
        (signal.SIGKILL, -9),
    ],
)
def test_no_server_is_left_after(
    number: signal.Signals, code: int, guard: Guard, tmp_path: Path
) -> None:
    words = guard("--sleep-first", "600")  # it is never ready
    environment = {**os.environ, "PYTHONPATH": str(Path(evalguard.__file__).parent.parent)}
    command = [sys.executable, "-m", "evalguard", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        wait_until(lambda: bool(servers(tmp_path)))
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == code
    if out:
        assert json.loads(out)["exit_code"] == code
    wait_until(lambda: all_gone(tmp_path))


@pytest.mark.slow
def test_ctrl_c_ends_a_probe_that_waits_for_its_server_and_keeps_the_verdict(
    guard: Guard, tmp_path: Path
) -> None:
    settings = {
        "sharpness": SHARP["sharpness"],
        "pace": {"reference": 1, "candidate": 9, "target": "serve.pace"},
    }
    words = [*guard("--hang-pace-alone", candidate={"settings": settings}), "--bisect", "auto"]
    environment = {**os.environ, "PYTHONPATH": str(Path(evalguard.__file__).parent.parent)}
    command = [sys.executable, "-m", "evalguard", *map(str, words)]

    def waits() -> bool:
        logs = (tmp_path / "cache" / "logs").glob("server-*.log")
        told = [log.read_text(encoding="utf-8") for log in logs]
        return any("'9'" in one and "=1.0" in one and "asked" in one for one in told)

    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        wait_until(waits)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    found = json.loads(out)
    assert found["exit_code"] == 1
    assert "interrupted" in str(found["bisect_reason"]) + str(found["bisect"])
    wait_until(lambda: all_gone(tmp_path))


@pytest.mark.parametrize(("usual", "varied"), [(1, 8), (4, 1)])
def test_a_floor_is_measured_at_one_request_in_flight_and_at_several(
    usual: int, varied: int, guard: Guard, tmp_path: Path, capfd
) -> None:
    words = guard()
    file = tmp_path / "guard.yaml"
    told = yaml.safe_load(file.read_text(encoding="utf-8"))
    told["models"]["served"]["model_args"]["num_concurrent"] = usual
    file.write_text(yaml.safe_dump(told), encoding="utf-8")
    done = run_here(
        ["floor", *words[1:5], "--vary", "concurrency", "--batch_size", "1", "--json", "--quiet",
         "--cache-dir", tmp_path / "cache"], capfd,
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    (variation,) = done.document["variations"]
    assert (variation["factor"], variation["value"]) == ("concurrency", varied)
    assert variation["default"] == usual
    assert done.document["computation"]["concurrency"] == usual
    assert all(shift["bit_identical"] for shift in done.document["shifts"])
    assert len(starts(tmp_path)) == 1  # it is the same server
    (log,) = (tmp_path / "cache" / "logs").glob("server-*.log")
    assert log.read_text(encoding="utf-8").count("asked") >= 2 * 24  # and the probes


def test_a_model_in_this_process_has_no_floor_of_concurrency(world: SmallWorld, capfd) -> None:
    words = ["floor", "--config", world.guard, "--base", "orig", "--vary", "concurrency"]
    done = run_here([*words, "--json", "--quiet"], capfd)
    assert done.code == 3
    assert "not asked over a connection" in done.document["error"]["message"]
