"""Servers that evalguard starts: ready before they are used, shared, and gone in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalguard.engine.servers import ServerCommand, keep_servers, lease_server
from evalguard.errors import EvaluationError
from evalguard.worker.process import kill_workers_of

STUB = Path(__file__).parent.parent / "stub_server.py"


def command(folder: Path, *words: str, **more: Any) -> ServerCommand:
    told = [sys.executable, str(STUB), "--port", "{port}", "--starts", str(folder / "starts")]
    fields: dict[str, Any] = {
        "name": "stub",
        "command": (*told, *words),
        "env": {},
        "url": "http://127.0.0.1:{port}/v1/completions",
        "ready": "",
        "folder": str(folder),
        "start_limit": 120.0,
    }
    return ServerCommand(**{**fields, **more})


def started(folder: Path) -> list[int]:
    """Process ids of the servers, and of what they started, in the order of their starts."""
    file = folder / "starts"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [int(number) for line in lines for number in line.partition("|")[0].split()]


def is_gone(pid: int) -> bool:
    """Whether a process ends, if that takes a while; one that nobody reaps counts as ended."""
    try:
        process = psutil.Process(pid)
        until = time.monotonic() + 120
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
            time.sleep(0.05)
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_server_answers_at_its_url_and_is_gone_after_its_last_use(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path), tmp_path)
    assert lease.server.answers()
    assert "{port}" not in lease.server.url
    lease.release()
    lease.release()
    assert not lease.server.is_running
    assert all(map(is_gone, started(tmp_path)))


def test_a_slow_server_is_waited_for(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path, "--sleep-first", "0.6"), tmp_path)
    assert lease.server.answers()
    lease.release()


def test_a_path_can_be_asked_whether_it_is_ready(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path, ready="/health"), tmp_path)
    assert lease.server.answers()
    lease.release()


def test_a_server_that_ends_at_once_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="exited with code 1 before it was ready") as refused:
        lease_server(command(tmp_path, "--die", "no memory for the cache"), tmp_path)
    assert "no memory for the cache" in str(refused.value)
    (log,) = tmp_path.glob("server-*.log")
    assert str(log) in refused.value.hint
    assert "no memory for the cache" in log.read_text(encoding="utf-8")


def test_a_flag_that_the_server_does_not_know_is_an_error_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="unrecognized arguments: --kv-cache fp8"):
        lease_server(command(tmp_path, "--kv-cache", "fp8"), tmp_path)


def test_a_program_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    wanted = command(tmp_path, command=("no-such-program", "{port}"))
    with pytest.raises(EvaluationError, match="cannot start no-such-program: No such file"):
        lease_server(wanted, tmp_path)


@pytest.mark.slow
def test_a_server_that_does_not_get_ready_is_ended_with_what_it_answered(tmp_path: Path) -> None:
    wanted = command(tmp_path, ready="/nothing-here", start_limit=3.0)
    with pytest.raises(EvaluationError, match="not ready within 3 s") as refused:
        lease_server(wanted, tmp_path)
    assert "start_limit" in refused.value.hint
    assert all(map(is_gone, started(tmp_path)))


def test_a_port_that_is_taken_is_an_error_and_the_other_server_is_not_asked(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        words = (sys.executable, str(STUB), "--port", port, "--starts", str(tmp_path / "starts"))
        wanted = command(tmp_path, command=words, url=f"http://127.0.0.1:{port}/v1/completions")
        with pytest.raises(EvaluationError, match=f"port {port} is taken") as refused:
            lease_server(wanted, tmp_path)
    assert "{port}" in refused.value.hint
    assert started(tmp_path) == []


def test_what_a_server_started_goes_with_it(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path, "--with-child"), tmp_path)
    lease.release()
    assert len(started(tmp_path)) == 2
    assert all(map(is_gone, started(tmp_path)))


@pytest.mark.slow
def test_a_server_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path, "--ignore-term"), tmp_path)
    lease.release()
    assert all(map(is_gone, started(tmp_path)))


def test_an_equal_server_is_used_again(tmp_path: Path) -> None:
    with keep_servers():
        first = lease_server(command(tmp_path), tmp_path)
        second = lease_server(command(tmp_path), tmp_path)
        first.release()
        second.release()
        third = lease_server(command(tmp_path, name="another model"), tmp_path)
        assert first.server is second.server is third.server
        third.release()
    assert len(started(tmp_path)) == 1
    assert all(map(is_gone, started(tmp_path)))


@pytest.mark.parametrize("differing", [{"env": {"STUB": "1"}}, {"words": ("--pace", "2")}])
def test_a_server_with_another_flag_or_variable_is_another(
    tmp_path: Path, differing: dict[str, Any]
) -> None:
    words = differing.pop("words", ())
    with keep_servers():
        first = lease_server(command(tmp_path), tmp_path)
        second = lease_server(command(tmp_path, *words, **differing), tmp_path)
        assert first.server is not second.server
    assert len(started(tmp_path)) == 2
    assert all(map(is_gone, started(tmp_path)))


def test_of_idle_servers_no_more_than_asked_stay(tmp_path: Path) -> None:
    with keep_servers(2):
        for pace in "1234":
            lease_server(command(tmp_path, "--pace", pace), tmp_path).release()
        assert [is_gone(pid) for pid in started(tmp_path)[:2]] == [True, True]
        assert all(psutil.pid_exists(pid) for pid in started(tmp_path)[2:])
        lease_server(command(tmp_path, "--pace", "4"), tmp_path).release()
    assert len(started(tmp_path)) == 4


def test_a_server_in_use_is_never_stopped_for_another(tmp_path: Path) -> None:
    with keep_servers(1):
        used = [lease_server(command(tmp_path, "--pace", pace), tmp_path) for pace in "12"]
        assert all(lease.server.answers() for lease in used)


def test_a_server_that_has_died_is_started_again(tmp_path: Path) -> None:
    with keep_servers():
        first = lease_server(command(tmp_path), tmp_path)
        psutil.Process(started(tmp_path)[0]).kill()
        assert is_gone(started(tmp_path)[0])
        second = lease_server(command(tmp_path), tmp_path)
        assert second.server.answers()
        assert second.server is not first.server


def test_a_server_that_is_being_started_goes_with_its_threads_workers(tmp_path: Path) -> None:
    errors: list[str] = []

    def start() -> None:
        try:
            lease_server(command(tmp_path, "--sleep-first", "600"), tmp_path)
        except EvaluationError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    until = time.monotonic() + 120
    while not started(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    kill_workers_of([thread])
    thread.join(120)
    assert ["was killed by SIGKILL" in error for error in errors] == [True]
    assert all(map(is_gone, started(tmp_path)))


def test_a_server_in_use_does_not_go_with_a_threads_workers(tmp_path: Path) -> None:
    lease = lease_server(command(tmp_path), tmp_path)
    kill_workers_of([threading.current_thread()])
    assert lease.server.answers()
    lease.release()


def test_a_server_that_is_being_started_is_given_up_when_all_are_stopped(tmp_path: Path) -> None:
    errors: list[str] = []

    def start() -> None:
        try:
            lease_server(command(tmp_path, "--sleep-first", "600"), tmp_path)
        except EvaluationError as error:
            errors.append(str(error))

    with keep_servers():
        thread = threading.Thread(target=start)
        thread.start()
        until = time.monotonic() + 120
        while not started(tmp_path) and time.monotonic() < until:
            time.sleep(0.05)
    thread.join(120)
    assert ["was ended" in error for error in errors] == [True]
    assert all(map(is_gone, started(tmp_path)))


def test_a_killed_evalguard_leaves_no_server(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = {[str(Path(__file__).parent), str(STUB.parent)]!r}
        from test_model_server import command
        from evalguard.engine.servers import lease_server
        lease_server(command(Path({str(tmp_path)!r}), "--with-child"), Path({str(tmp_path)!r}))
        print("ready", flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        os.kill(parent.pid, 9)
    assert len(started(tmp_path)) == 2
    assert all(map(is_gone, started(tmp_path)))
