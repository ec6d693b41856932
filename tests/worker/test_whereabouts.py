"""Where a process is stuck: the function of its user's, also where native code keeps Python out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evalguard
from evalguard.worker.process_family import STACK_SIGNAL, find_stuck_function

STUCK = """
import ctypes, subprocess, sys
from evalguard.worker.process_family import dump_stack_on_signal

def of_the_user():
    print("there", flush=True); {body}

dump_stack_on_signal()
of_the_user()
"""
# It keeps the interpreter to itself: no thread of Python's runs any more.
NATIVE = "ctypes.PyDLL(None).sleep(600)"
OTHER = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


@pytest.mark.parametrize("body", [NATIVE, OTHER], ids=["native", "child"])
def test_a_stuck_process_names_the_function_of_its_user(tmp_path: Path, body: str) -> None:
    script, log = tmp_path / "stuck.py", tmp_path / "log"
    script.write_text(STUCK.format(body=body))
    log.write_text('File "old.py", line 1 in of_somebody_else\n')
    checkout = str(Path(evalguard.__file__).parent.parent)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, script], stdout=subprocess.PIPE, stderr=output,
            env={"PYTHONPATH": checkout}, start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert (
            find_stuck_function(process.pid, log, patience=300.0)
            == f"of_the_user ({script}, line 6)"
        )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_process_that_does_not_tell_is_nowhere(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    assert find_stuck_function(process.pid, tmp_path / "no-log") == ""
    (tmp_path / "log").touch()
    assert find_stuck_function(process.pid, tmp_path / "log", patience=1.0) == ""
    process.wait()
    assert find_stuck_function(process.pid, tmp_path / "log") == ""


def test_a_process_that_did_not_hear_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = tmp_path / "log", []
    log.touch()

    def kill(pid: int, number: int) -> None:
        asked.append(number)
        if len(asked) == 3:
            log.write_text('  File "/home/me/hooks.py", line 8 in load\n')

    monkeypatch.setattr(os, "kill", kill)
    assert find_stuck_function(1, log, patience=300.0) == "load (/home/me/hooks.py, line 8)"
    assert asked == [STACK_SIGNAL] * 3


def test_a_stack_that_comes_in_pieces_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    pieces = [
        'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/subproc',
        'ess.py", line 1 in wait\n  File "/home/me/hooks.py", line 8 in lo',
        'ad\n  File "/home/me/main.py", line 9 in run\n',
    ]
    log.touch()
    monkeypatch.setattr(os, "kill", lambda pid, number: None)

    def sleep(seconds: float) -> None:
        with log.open("a") as file:
            file.write(pieces.pop(0))

    monkeypatch.setattr(time, "sleep", sleep)
    assert find_stuck_function(1, log, patience=300.0) == "load (/home/me/hooks.py, line 8)"
    assert not pieces
