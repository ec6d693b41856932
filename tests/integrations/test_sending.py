"""Sending ends in time: whatever a tracker does in its process, and whatever it started there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tracked_examples import example

from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import send_run

# A tracker that hangs with a helper in a session of its own, both deaf to polite signals.
_HANGING = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
helper = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
pathlib.Path({pid!r}).write_text(str(helper.pid))
time.sleep(600)
"""


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that stands for trackio in the sending process; write its text there."""
    folder = tmp_path / "modules"
    folder.mkdir()
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{before}")
    return folder / "trackio.py"


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone_soon(pid: int) -> bool:
    """A killed process ends when it gets a processor, not at once."""
    deadline = time.monotonic() + 60
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return gone(pid)


@pytest.mark.slow
def test_a_tracker_that_hangs_is_killed_with_all_that_it_started(
    tracker: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    tracker.write_text(_HANGING.format(pid=str(pid)), encoding="utf-8")
    for seconds in (3, 12, 48):  # a slow machine needs longer to get as far as the helper
        bounds = SendingLimits(start=seconds - 1, init=0.5, finish=0.5)
        sent = send_run("trackio", example(tmp_path), folder=tmp_path, bounds=bounds)
        assert (sent.state, sent.reason) == ("failed", f"no answer within {seconds} s")
        if pid.exists() and pid.read_text(encoding="utf-8"):
            break
    assert gone_soon(int(pid.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "raise RuntimeError('no room,\\n  token=hf_abcdefghijklmnopqrst')",
            "no room, token=***",
        ),
        ("import os; os._exit(7)", "the sending process ended with code 7"),
        ("print('last words'); import os, signal; os.kill(os.getpid(), 9)", "code -9"),
        ("raise ModuleNotFoundError('x')", "it is not installed: pip install "),
        ("def init(**given): raise SystemExit('done')", "the sending process ended with code 1"),
    ],
)
def test_a_tracker_that_fails_gives_its_reason_without_secrets(
    tracker: Path, tmp_path: Path, text: str, reason: str
) -> None:
    tracker.write_text(text, encoding="utf-8")
    sent = send_run("trackio", example(tmp_path), folder=tmp_path)
    assert sent.state == "failed"
    assert reason in sent.reason
    assert "hf_" not in sent.reason


def test_ctrl_c_ends_a_tracker_that_hangs(tracker: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    tracker.write_text(_HANGING.format(pid=str(pid)), encoding="utf-8")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tracked_examples import example\n"
        "from evalguard.publish.tracking import send_run\n"
        "try: send_run('trackio', example(Path('.')), folder=Path('.'))\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent.parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while not pid.exists() or not pid.read_text(encoding="utf-8"):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert said == "interrupted\n"
    assert process.returncode == 0
    assert gone_soon(int(pid.read_text(encoding="utf-8")))
