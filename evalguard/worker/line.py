"""Line: calls to one worker process, each with its answer or one clear error."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import evalguard
from evalguard.core.plain import PlainError
from evalguard.core.reports.findings import quote_message
from evalguard.errors import WorkerError
from evalguard.worker.channel import Channel, PipeClosed
from evalguard.worker.failures import to_exception
from evalguard.worker.messages import (
    CALLS,
    PROTOCOL,
    Answer,
    Call,
    CallName,
    Hello,
    Refusal,
    frame_message,
)
from evalguard.worker.peak_memory import peak_memory
from evalguard.worker.process import WorkerProcess, worker_command

# An interpreter on a slow disk may take this long to import numpy, before it can say anything.
START_SILENCE = 60.0
# Its pipe is closed; how it ended is known once it has, and it may still have a log to write.
_LAST_MOMENTS = 10.0


class WorkerLink(Protocol):
    """A worker process, wherever it runs, and the way to it."""

    @property
    def log(self) -> Path | None:
        """File, where the worker runs, that its stdout and stderr are appended to."""

    @property
    def pid(self) -> int:
        """Process id, where it runs."""

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send a frame and return the next message, as ``Channel.exchange``."""

    def is_running(self) -> bool:
        """Whether it has not ended."""

    def fate(self, *, wait: float) -> str:
        """How it ended, as a predicate; "" if it runs on after ``wait`` seconds."""

    def log_tail(self) -> str:
        """The last lines that it logged."""

    def stuck_in(self) -> str:
        """In which function it is, where it is killed next; "" where it does not tell."""

    def peak_memory(self) -> int | None:
        """Largest resident set so far in bytes; None where that is not known."""

    def finish(self) -> None:
        """End a worker that was asked to end."""

    def kill(self) -> None:
        """Kill it with all that it started. Idempotent."""


class StartWorker(Protocol):
    """Starts a worker process somewhere, as ``start_here``."""

    def __call__(
        self, python: str, arguments: Sequence[str], *, env: Mapping[str, str | None], log: Path
    ) -> WorkerLink: ...


class PipedWorker(WorkerProcess):
    """A worker process of this machine, and the two pipes to it."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str | None], log: Path | None
    ) -> None:
        super().__init__(command, env=env, log=log)
        self._channel = Channel(self.requests_fd, self.replies_fd, is_running=self.is_running)

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send a frame and return the next message, as ``Channel.exchange``."""
        return self._channel.exchange(frame, silence=silence, timeout=timeout)

    def peak_memory(self) -> int | None:
        """Largest resident set so far in bytes; None where that is not known."""
        return peak_memory(self.pid)


def start_here(
    python: str, arguments: Sequence[str], *, env: Mapping[str, str | None], log: Path
) -> PipedWorker:
    """Start a worker on this machine.

    Raises:
        WorkerError: it cannot be started.
    """
    return PipedWorker([*worker_command(python), *arguments], env=env, log=log)


class WorkerConnection:
    """A worker process, and what is said to it.

    An error that a call raised there leaves the worker ready for the next one. A worker that dies,
    falls silent, exceeds ``timeout`` or sends garbage is killed with its children, and the
    ``WorkerError`` carries the end of its log. An exception in this process during a call, Ctrl-C
    included, kills the worker before it goes on.

    Args:
        name: of the model, for messages.
        python: interpreter of the worker; it must have this version of evalguard.
        env: environment variables set over this process's own; None takes one away.
        log: file to which the worker's stdout and stderr are appended.
        silence: seconds without a sign of life during a call after which a worker is wedged.
        timeout: seconds that one call may take; None: no limit.
        start: starts it, on this machine or another.

    Attributes:
        import_path: where this process finds packages, for a worker that is to find the same.

    Raises:
        WorkerError: the worker cannot be started.
    """

    def __init__(
        self,
        name: str,
        *,
        python: str = sys.executable,
        env: Mapping[str, str | None],
        log: Path,
        silence: float = 60.0,
        timeout: float | None = None,
        start: StartWorker = start_here,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.silence = silence
        self._numbers = itertools.count(1)
        self._peak_memory: int | None = None
        self._greeted = False
        self.import_path = tuple(map(str, sys.path)) if python == sys.executable else ()
        arguments = ["--beat", f"{min(1.0, silence / 5):g}"]
        self._process = start(python, arguments, env=env, log=log)
        # Also when nobody calls close(): at garbage collection and at exit of this process.
        self.kill = weakref.finalize(self, self._process.kill)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether the worker was not ended from here."""
        return self.kill.alive

    @property
    def is_running(self) -> bool:
        """Whether the worker has not ended, neither from here nor by itself."""
        return self.is_open and self._process.is_running()

    @property
    def peak_memory(self) -> int | None:
        """Largest resident set of the worker in bytes, up to its end; None where not known."""
        return self._process.peak_memory() if self.is_open else self._peak_memory

    def call(self, name: CallName, argument: object, *, doing: str) -> Any:
        """Return what the worker answers.

        Raises:
            WorkerError: it has ended, or does so now, or is not a worker of this version.
            EvalguardError: what the call raised there.
        """
        if not self.is_open:
            raise WorkerError(
                f"the worker of model '{self.name}' has ended; it cannot go on {doing}",
                log=str(self._process.log),
            )
        if not self._greeted:
            self._greet()
        form = CALLS[name]
        call = Call(number=next(self._numbers), name=name, argument=form.argument.encode(argument))
        reply = self._exchange(frame_message(call), doing, silence=self.silence)
        if isinstance(reply, Refusal) and reply.number == call.number:
            raise to_exception(reply.failure, model=self.name, log=str(self._process.log))
        if not isinstance(reply, Answer) or reply.number != call.number:
            number = getattr(reply, "number", "")
            said = f"answered call {call.number} with {type(reply).__name__} {number}".rstrip()
            raise self.broken(WorkerError(said), doing)
        try:
            return form.value.decode(reply.value)
        except PlainError as error:
            raise self.broken(WorkerError(f"sent a damaged answer: {error}"), doing) from error

    def finish(self) -> None:
        """End a worker that was asked to end."""
        self._process.finish()

    def hang_up(self) -> None:
        """Kill the worker if it has not ended; remember how much memory it took."""
        if self.is_open:
            self._peak_memory = self.peak_memory
            self.kill()

    def broken(self, error: WorkerError, doing: str) -> WorkerError:
        """Kill the worker; return ``error`` with its circumstances and the end of the log."""
        gone = isinstance(error, PipeClosed)
        fate = self._process.fate(wait=_LAST_MOMENTS if gone else 0.0)
        tail = self._process.log_tail()
        place = self._process.stuck_in() if error.cause == "late" and not fate else ""
        self.kill()
        what = fate if gone and fate else "; it ".join(filter(None, [str(error), fate]))
        doing = f"{doing}, in {place}" if place else doing
        log = str(self._process.log)
        silent = "has all that it was doing" if place else "is empty"
        ending = f"its log is {log}" if tail else f"its log ({log}) {silent}"
        hint, killed = error.hint, gone and "SIGKILL" in fate
        if killed:
            hint = "if memory ran out, try a smaller --batch_size"
        what = f"the worker of model '{self.name}' {what} while {doing}"
        return WorkerError(
            f"{what}; {ending}",
            quotes=quote_message(tail),
            log=log,
            cause="killed" if killed else error.cause,
            hint=hint,
        )

    def _greet(self) -> None:
        doing = "starting"
        hello = self._exchange(b"", doing, silence=max(self.silence, START_SILENCE))
        if not isinstance(hello, Hello):
            raise self.broken(WorkerError(f"began with {type(hello).__name__}, not Hello"), doing)
        if (hello.evalguard, hello.protocol) != (evalguard.__version__, PROTOCOL):
            error = WorkerError(
                f"has evalguard {hello.evalguard} (Python {hello.python}, protocol "
                f"{hello.protocol}), this process has {evalguard.__version__} (protocol "
                f"{PROTOCOL})",
                hint="install the same version of evalguard for both interpreters",
            )
            raise self.broken(error, doing)
        self._greeted = True

    def _exchange(
        self, frame: bytes, doing: str, *, silence: float
    ) -> Answer | Call | Hello | Refusal:
        try:
            return self._process.exchange(frame, silence=silence, timeout=self.timeout)
        except WorkerError as error:
            raise self.broken(error, doing) from error
        except BaseException:
            # Ctrl-C: the answer to this call would be taken for that of the next one.
            self.kill()
            raise
