"""A process that compares no pairs, and does what a candidate's name says in place of it.

Run as a program it takes the place of ``evalguard.nights.pair_process``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, cast

import evalguard
from evalguard.core.settings import Value
from evalguard.engine.own_process import leave_signals_to_the_parent
from evalguard.worker.messages import Call
from evalguard.worker.server import serve_calls

# A session of its own, as model workers and build recipes have.
_SLEEPER = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(3600)"


def child() -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLEEPER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return int(process.stdout.readline())


def note(*words: object) -> None:
    """Tell the test: a line in the file that it named."""
    journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())
    os.close(journal)


def hang(*, deaf: bool = False, alone: bool = True) -> None:
    if deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    note("hangs", *([] if alone else [child()]))
    try:
        time.sleep(3600)
    except KeyboardInterrupt:
        note("interrupted")
        raise


class Desk:
    """Answers by the candidate's name."""

    asked = 0

    def answer(self, call: Call) -> Value:
        if call.name == "close":
            note("closed")
            return None
        work = cast("dict[str, Any]", call.argument)
        name, self.asked = work["candidate"], self.asked + 1
        note("asked", name)
        if name == "hangs":
            hang()
        elif name == "deaf":
            hang(deaf=True, alone=False)
        elif name == "killed" or (name == "killed-if-shared" and self.asked > 1):
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif name == "exits":
            os._exit(7)
        elif name == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        elif name == "broken":
            raise RuntimeError("no such library")
        elif name == "damaged":
            return {"state": "passed"}
        elif name == "garbage":
            os.write(int(sys.argv[sys.argv.index("--replies") + 1]), b"Loading: 100%")
        failed = name == "fails"
        return {
            "base": work["base"],
            "candidate": name,
            "state": "failed" if failed else "passed",
            "exit_code": 3 if failed else 0,
            "reason": "as its name says",
            "created": "" if failed else "2026-11-22T03:00:00+00:00",
            "metrics": [],
            "bisection": "" if work["verdict"] is None else "minimal",
        }

    def close(self) -> None:
        pass


if __name__ == "__main__":
    leave_signals_to_the_parent()
    other = os.environ.get("OTHER_EVALGUARD")
    if other:
        evalguard.__version__ = other
    fds = [int(sys.argv[sys.argv.index(name) + 1]) for name in ("--requests", "--replies")]
    try:
        serve_calls(*fds, Desk())
    except KeyboardInterrupt:
        sys.exit(130)
