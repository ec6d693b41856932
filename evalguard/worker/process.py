"""WorkerProcess: the operating system's side of a worker, from start to the last child reaped."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Protocol

import evalguard
from evalguard.errors import WorkerError

if TYPE_CHECKING:
    import psutil

WORKER_MODULE = "evalguard.run.worker"
_TAIL_BYTES = 16_384
_TAIL_LINES = 10
_TAIL_WIDTH = 300
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
    return next((place for place in places if place), "")


def register_worker(worker: InterruptibleWorker) -> None:
    """Let a worker be found by the thread that started it, for as long as it is used."""
    _started.add(worker)


def _open_workers(threads: Collection[threading.Thread]) -> list[InterruptibleWorker]:
    return [one for one in list(_started) if one.thread in threads and one.is_open]


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
        """Return the last lines that this worker logged, made safe for a terminal."""
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
        shown = "\n".join(lines[-_TAIL_LINES:])
        return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in shown)

    def _close_pipes(self) -> None:
        for descriptor in (self.requests_fd, self.replies_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.requests_fd = self.replies_fd = -1


_started: weakref.WeakSet[InterruptibleWorker] = weakref.WeakSet()


# A process's family: everything that it started, in whatever session.


def kill_descendants(pid: int, *, beside: Iterable[psutil.Process] = ()) -> None:
    """Kill every process that a running process has started, itself excepted.

    A process group is not enough: model workers and build recipes have sessions of their own.

    Args:
        beside: others to kill, found before: those whose parent has ended are nobody's.
    """
    import psutil

    for child in (*beside, *find_descendants(pid)):
        with contextlib.suppress(psutil.Error):  # it is gone already
            child.kill()


def find_descendants(pid: int) -> list[psutil.Process]:
    """Every process that a running process has started, itself excepted."""
    import psutil

    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


# How a worker ends when the process that started it is gone.


def end_process_group(reason: str) -> NoReturn:
    """End this worker at once, with every process that it started; log why.

    For a worker that cannot reach its parent any more: nobody will read what it would compute.
    (The kernel's parent-death signal would not do: it comes when the *thread* that started the
    worker ends.)
    """
    with contextlib.suppress(OSError):  # where its messages went is gone, too
        os.write(2, f"evalguard worker {os.getpid()} ends: {reason}\n".encode())
    kill_descendants(os.getpid())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


# Peak memory of a process.


def peak_memory(pid: int | None = None) -> int | None:
    """Largest resident set of a running process so far, in bytes; None where it is not known.

    On Linux that of its present program: what ``getrusage`` gives includes the process that it
    was started from, which shared its memory until then.

    Args:
        pid: the process; None: this one, which other systems tell about, too.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    except OSError:
        return _own_peak_memory() if pid is None else None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def _own_peak_memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


# Whereabouts: in which function a worker is stuck, which is what its user has to look at.


# A worker writes its stack to its log at this signal, also while native code holds the interpreter.
STACK_SIGNAL = signal.SIGUSR1
STACK_PATIENCE = 5.0
"""Seconds to wait for what a worker says; one that was stopped says nothing."""
_POLL_EVERY = 0.02
_COMPLETE_AFTER = 0.5  # seconds: on a loaded machine a stack is written in several pieces
_ASK_AGAIN_AFTER = (
    0.25  # seconds: while the main thread starts a process, one without a stack may be asked
)
_MOST_STACK_BYTES = 16_384  # bytes of a stack that are looked at; the innermost call comes first
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)\n', re.M)
_LIBRARY = re.compile(r"[/\\]python\d[.\d]*[/\\]|[/\\](site|dist)-packages[/\\]")
_Frame = re.Match[str]


def dump_stack_on_signal() -> None:
    """Let this process write the stack of its main thread to stderr when it is asked."""
    faulthandler.register(STACK_SIGNAL, all_threads=False)


def find_stuck_function(pid: int, log: Path, *, patience: float = STACK_PATIENCE) -> str:
    """Ask a process that is about to be killed what it is doing.

    Args:
        pid: of a worker; one that is not ready to tell ends here.
        log: file to which its stderr is appended.
        patience: seconds to wait for it.

    Returns:
        "load (hooks.py, line 8)": the innermost function that is neither a library's nor
        evalguard's, else the innermost; "" where it does not tell.
    """
    try:
        frames = _read_frames(pid, log, patience)
    except OSError:
        return ""
    found = _find_user_frame(frames) or next(iter(frames), None)
    if found is None:
        return ""
    shown = f"{found['function']} ({found['file']}, line {found['line']})"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _read_frames(pid: int, log: Path, patience: float) -> list[_Frame]:
    """The frames that a log is longer by: until one of them is the user's, or no more come."""
    before, written = log.stat().st_size, b""
    frames: list[_Frame] = []
    now = asked = grown = time.monotonic()
    deadline = now + patience
    os.kill(pid, STACK_SIGNAL)
    while now < deadline:
        time.sleep(_POLL_EVERY)
        now, more = time.monotonic(), _read_after(log, before)
        if len(more) > len(written):
            written, grown = more, now
        frames = _frames(written)
        if _find_user_frame(frames) or (frames and now - grown > _COMPLETE_AFTER):
            break
        if not written and now - asked > _ASK_AGAIN_AFTER:
            os.kill(pid, STACK_SIGNAL)
            asked = now
    return frames


def _read_after(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(start)
        return file.read(_MOST_STACK_BYTES)


def _frames(written: bytes) -> list[_Frame]:
    """Those that are written to the end of their line, the innermost first."""
    return list(_FRAME.finditer(written.decode("utf-8", "replace")))


def _find_user_frame(frames: list[_Frame]) -> _Frame | None:
    """The innermost one that is neither a library's nor evalguard's."""
    own = str(Path(evalguard.__file__).parent)
    for one in frames:
        if not _LIBRARY.search(one["file"]) and not one["file"].startswith((own, "<")):
            return one
    return None
