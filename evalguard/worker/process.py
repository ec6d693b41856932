"""WorkerProcess: the operating system's side of a worker, from start to the last child reaped."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from evalguard.errors import WorkerError
from evalguard.worker.process_family import find_stuck_function, kill_descendants

WORKER_MODULE = "evalguard.engine.worker_main"
_TAIL_BYTES = 65_536
_TAIL_LINES = 10
_TAIL_WIDTH = 300
# An exception's own line ("RuntimeError: no kernel for ..."), or a program's: what it printed while
# it ended may be longer than the tail, and say nothing.
_REASON = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception)|(?i:error|fatal|panic)): (.+)")
_REASONS = 3
_END_PATIENCE = 2.0
_STDERR = 2


def worker_command(python: str, module: str = WORKER_MODULE) -> list[str]:
    """Return the command line that starts a worker, a module, in the interpreter ``python``.

    ``-u``: what a dying worker printed last is in its log. ``-P``: ``-m`` would put the current
    folder first on the import path, where this process may not have it.
    """
    isolated = (
        python == sys.executable
        and sys.version_info >= (3, 11)
        and not {"", os.getcwd()} & set(sys.path)
    )
    return [python, "-u", *(["-P"] if isolated else []), "-m", module]


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with ``changes``; None takes a variable away."""
    changed = {**os.environ, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def _open_own(path: str, flags: int) -> int:
    """Open a log for this user alone, and never through a link that somebody put in its place."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _open_log(log: Path | None) -> BinaryIO:
    if log is None:
        return os.fdopen(os.dup(_STDERR), "wb", buffering=0)
    log.parent.mkdir(parents=True, exist_ok=True)
    return open(log, "ab", opener=_open_own)


def _not_started(program: str, log: Path | None, error: Exception) -> WorkerError:
    if log is not None and isinstance(error, OSError) and error.filename not in (None, program):
        return WorkerError(
            f"cannot write the worker's log {log}: {error.strerror}",
            log=str(log),
            hint="--cache-dir FOLDER keeps logs elsewhere",
        )
    return WorkerError(f"cannot start a worker process ({program}): {error}", log=str(log or ""))


def kill_workers_of(threads: Collection[threading.Thread]) -> None:
    """Kill the workers that these threads have started and may be waiting for.

    The threads notice at their next look at the pipes, and clear up by themselves.
    """
    for process in _open_workers(threads):
        process.interrupt()


def stuck_workers_of(threads: Collection[threading.Thread]) -> str:
    """Say in which function a worker of these threads is, which is to be killed now; "" if none."""
    places = (process.stuck_in() for process in _open_workers(threads))
    return next((function for function in places if function), "")


def register_worker(worker: InterruptibleWorker) -> None:
    """Let a worker be found by the thread that started it, for as long as it is used."""
    _started.add(worker)


def _open_workers(threads: Collection[threading.Thread]) -> list[InterruptibleWorker]:
    return [worker for worker in list(_started) if worker.thread in threads and worker.is_open]


class InterruptibleWorker(Protocol):
    """A worker that another thread can end while the one that started it waits for an answer."""

    @property
    def thread(self) -> threading.Thread | None:
        """Which started it; None where it is no single thread's."""

    @property
    def is_open(self) -> bool:
        """Whether it was not ended from here yet."""

    def interrupt(self) -> None:
        """Kill it; whoever waits for it notices, and clears up."""

    def stuck_in(self) -> str:
        """In which function it is, where it is killed next; "" where it does not tell."""


class WorkerProcess:
    """A worker process in a session of its own, with two pipes.

    Ctrl-C in the terminal does not reach it: this process decides when it ends.

    Attributes:
        requests_fd: this side's (writing) end of the request pipe.
        replies_fd: this side's (reading) end of the reply pipe.
        log: file to which the worker's stdout and stderr are appended; None: both are this
            process's stderr.
        thread: which started it; None where it is shared.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str | None], log: Path | None
    ) -> None:
        """Start ``command --requests FD --replies FD`` with ``env`` over this environment.

        Raises:
            WorkerError: if the log cannot be written or the command cannot be started.
        """
        self.log = log
        self.requests_fd = self.replies_fd = -1
        self._owner = os.getpid()
        self.thread: threading.Thread | None = threading.current_thread()
        workers_ends: list[int] = []
        try:
            with _open_log(log) as output:
                self._log_start = output.tell() if log is not None else 0
                worker_reads, self.requests_fd = os.pipe()
                workers_ends.append(worker_reads)
                self.replies_fd, worker_writes = os.pipe()
                workers_ends.append(worker_writes)
                self._popen = subprocess.Popen(
                    [*command, "--requests", str(worker_reads), "--replies", str(worker_writes)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(env),
                    pass_fds=(worker_reads, worker_writes),
                    start_new_session=True,
                )
        except BaseException as error:
            self._close_pipes()
            if not isinstance(error, OSError | ValueError):
                raise
            raise _not_started(command[0], log, error) from error
        finally:
            for descriptor in workers_ends:
                os.close(descriptor)
        register_worker(self)

    @property
    def is_open(self) -> bool:
        """Whether the worker was not ended from here yet: its number is still its own."""
        return self.requests_fd >= 0

    @property
    def pid(self) -> int:
        """Process id, also of the worker's process group."""
        return self._popen.pid

    def is_running(self) -> bool:
        """Return whether the worker has not ended yet."""
        return self._popen.poll() is None

    def share(self) -> None:
        """Be no single thread's any more: it is not killed where that one's workers are."""
        self.thread = None

    def interrupt(self) -> None:
        """Kill it while another thread may be waiting for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stuck_in(self) -> str:
        """In which function it is, where it is killed next; "" where it does not tell."""
        return "" if self.log is None else find_stuck_function(self.pid, self.log)

    def fate(self, *, wait: float) -> str:
        """Return how the worker ended, as a predicate; "" if it runs on after ``wait`` seconds."""
        try:
            code = self._popen.wait(wait)
        except subprocess.TimeoutExpired:
            return ""
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def finish(self) -> None:
        """End a worker that was asked to end: wait, then SIGTERM, then kill its group."""
        if not self.fate(wait=_END_PATIENCE):
            self._popen.terminate()
            self.fate(wait=_END_PATIENCE)
        self.kill()

    def kill(self) -> None:
        """Kill the worker with all that it started, reap it, close the pipes. Idempotent."""
        if self.requests_fd < 0 or os.getpid() != self._owner:
            return
        if self.is_running():
            kill_descendants(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._close_pipes()

    def log_tail(self) -> str:
        """Return the last lines that this worker logged, made safe for a terminal; before them the
        last that report an error, if they lie farther back."""
        if self.log is None:
            return ""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                text = log.read().decode("utf-8", "replace")
        except OSError as error:
            return f"(cannot be read: {error})"
        lines = [line.rstrip()[:_TAIL_WIDTH] for line in text.splitlines() if line.strip()]
        before, last = lines[:-_TAIL_LINES], lines[-_TAIL_LINES:]
        reasons = {match[1]: line for line in before if (match := _REASON.search(line))}
        shown = "\n".join([*list(reasons.values())[-_REASONS:], *last])
        return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in shown)

    def _close_pipes(self) -> None:
        for descriptor in (self.requests_fd, self.replies_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.requests_fd = self.replies_fd = -1


_started: weakref.WeakSet[InterruptibleWorker] = weakref.WeakSet()


# What these warn of while they are imported is how they were built.
_OF_BUILDS = ("torchao", "torch.utils._pytree", "torch.onnx")


def hide_builds() -> None:
    """Leave out what libraries say of their own builds: kernels that this machine cannot load."""
    for name in _OF_BUILDS:
        logging.getLogger(name).setLevel(logging.ERROR)
