"""The process between evalguard and a server that it started: it sees to it that the server ends.

    python -m evalguard.worker.supervisor --requests FD --replies FD

The first line of the request pipe is a JSON object: ``command``, ``folder`` and ``env`` of the
server, and the ``patience`` in seconds that it gets to end by itself. When the pipe ends, for
whatever reason (``kill -9`` of evalguard, too), the server is told to end, then killed with all
that it started. A server that ends by itself ends this process, in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

from evalguard.worker.process_family import find_descendants, kill_descendants

_PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127  # what a shell says of a program that cannot be run


def supervise(requests_fd: int) -> int:
    """Run the server that the pipe names until it, or the pipe, ends; return its exit status."""
    _adopt_orphans()
    woken = _wake_on_child()
    with os.fdopen(requests_fd, "rb", buffering=0):
        job = _read_job(requests_fd)
        if job is None:
            return 0
        try:
            server = subprocess.Popen(
                job["command"], cwd=job["folder"], env=job["env"], stdin=subprocess.DEVNULL
            )
        except OSError as error:
            why = error.strerror or error
            os.write(1, f"cannot start {job['command'][0]}: {why}\n".encode())
            return NOT_STARTED
        while server.poll() is None:
            ready, _, _ = select.select([requests_fd, woken], [], [])
            signals = os.read(woken, 1024) if woken in ready else b""
            if signal.SIGTERM in signals:
                _stop(server, patience=0.0)
            elif requests_fd in ready:  # a word to stop, or its other end was closed
                _stop(server, patience=float(job["patience"]))
    return server.returncode


def _read_job(descriptor: int) -> dict[str, Any] | None:
    """The first line; None where the pipe ended before."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, 65_536)
        if not chunk:
            return None
        line += chunk
    job: dict[str, Any] = json.loads(line)
    return job


def _adopt_orphans() -> None:
    """Be the parent of whatever the server started and left behind, on Linux.

    Elsewhere only what is there when the server is told to end can be found.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wake_on_child() -> int:
    """A descriptor from which the numbers of SIGCHLD and SIGTERM can be read, when they come."""
    woken, waking = os.pipe()
    for descriptor in (woken, waking):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return woken


def _stop(server: subprocess.Popen[bytes], *, patience: float) -> None:
    """Ask the server to end; after ``patience`` seconds kill it and all that it started."""
    family = find_descendants(os.getpid())
    with contextlib.suppress(ProcessLookupError):
        server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(patience)
    kill_descendants(os.getpid(), beside=family)
    server.wait()


def _end_as(status: int) -> None:
    """End as the server did, with whatever is left of its process group, which is this one's."""
    kill_descendants(os.getpid())
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other way
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 1)


if __name__ == "__main__":
    _end_as(supervise(int(sys.argv[sys.argv.index("--requests") + 1])))
