"""The night's side of the process that compares pairs: a bad pair takes only that process down."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from types import TracebackType
from typing import Any, Protocol, cast

import evalguard
from evalguard.core.reports.night import PairNight
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, WorkerError
from evalguard.run.nightly.pair_worker import PairWork, read_pair
from evalguard.worker.line import Channel, PipeClosed
from evalguard.worker.messages import Answer, Call, Hello, Refusal, frame_message
from evalguard.worker.process import WorkerProcess, worker_command


class PairExecutor(Protocol):
    """Does work for pairs, as ``PairRunner`` does."""

    def run(self, work: PairWork, *, seconds: float = math.inf) -> PairNight:
        """Return what came of it."""


class PairRunner:
    """Does work for pairs, one after the other.

    Pairs share a process as long as all goes well, for starting one takes seconds. After one that
    gave no report (a GPU may be of no more use to its process), and after a bisection, the next has
    a new one.
    """

    def __init__(self) -> None:
        self._process: PairProcess | None = None

    def run(self, work: PairWork, *, seconds: float = math.inf) -> PairNight:
        """Have a piece of work done.

        What takes down a process in which others were before is tried once more in a new one: what
        those left behind may have been the reason.

        Args:
            seconds: after which the process is killed with all that it started.

        Raises:
            WorkerError: the process died, or its time was up ("late").
            EvaluationError: it could do nothing at all.
            KeyboardInterrupt: on Ctrl-C; the process was stopped.
        """
        end = time.monotonic() + seconds
        shared = self._process is not None
        try:
            found = self._request_night(work, end)
        except WorkerError as error:
            if error.cause == "late" or not shared:
                raise
            found = self._request_night(work, end)
        if not found.created or work.verdict is not None:
            self.close()
        return found

    def close(self) -> None:
        """End the process; the next piece of work has a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def __enter__(self) -> PairRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request_night(self, work: PairWork, end: float) -> PairNight:
        process, self._process = self._process or PairProcess(), None
        found = process.ask(work, end=end)
        self._process = process  # not where anything was raised: then it is gone
        return found


# PairProcess: the night's side of the process that compares pairs.


PAIR_WORKER_MODULE = "evalguard.run.nightly.pair_worker"
# What a pair that was told to stop may take to end its workers and to clear its line on the
# terminal; what it has finished is on the disk by then.
STOP_SECONDS = 10.0


class PairProcess:
    """One process; it does one piece of work after the other until one of them goes wrong.

    What it prints goes to this process's stderr. Ctrl-C does not reach it, but through ``ask``.

    Raises:
        WorkerError: it cannot be started.
    """

    def __init__(self) -> None:
        command = [
            *worker_command(sys.executable, PAIR_WORKER_MODULE),
            "--import-path",
            json.dumps([str(entry) for entry in sys.path]),
            "--log-level",
            str(_log_level()),
        ]
        self._process = WorkerProcess(command, env={}, log=None)
        self._channel = Channel(
            self._process.requests_fd,
            self._process.replies_fd,
            is_running=self._process.is_running,
        )
        self._requests = 0

    @property
    def used(self) -> bool:
        """Whether it was asked for anything yet."""
        return self._requests > 0

    def ask(self, work: PairWork, *, end: float = math.inf) -> PairNight:
        """Have a piece of work done.

        Args:
            end: the time (``time.monotonic()``) after which the process is killed with all that it
                started.

        Raises:
            WorkerError: the process died ("killed", or no cause), or its time was up ("late"). It
                is gone then.
            EvaluationError: it could do nothing at all; the message says why.
            KeyboardInterrupt: on Ctrl-C; the process was stopped.
        """
        try:
            if not self.used:
                self._greet(end)
            self._requests += 1
            reply = self._exchange(
                Call(number=self._requests, name="pair", argument=work.as_record()), end
            )
            if not isinstance(reply, Answer) or reply.number != self._requests:
                raise WorkerError(f"sent {type(reply).__name__} where an answer is expected")
            return _read_answer(reply.value)
        except WorkerError as error:
            raise self._lost(error) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Interrupt what it does, as Ctrl-C would; kill it where that does not end it soon."""
        try:
            if self.used and self._process.is_running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGINT)
                self._process.fate(wait=STOP_SECONDS)
        finally:
            self._process.kill()

    def close(self) -> None:
        """End a process that has nothing to do."""
        try:
            with contextlib.suppress(WorkerError):
                self._exchange(
                    Call(number=0, name="close", argument=None), time.monotonic() + STOP_SECONDS
                )
            self._process.finish()
        finally:
            self._process.kill()

    def _greet(self, end: float) -> None:
        hello = self._exchange(None, end)
        if not isinstance(hello, Hello):
            raise WorkerError(f"began with {type(hello).__name__}, not Hello")
        if hello.evalguard != evalguard.__version__:
            raise EvaluationError(
                f"evalguard {evalguard.__version__} was replaced by {hello.evalguard} while the "
                "night ran",
                hint="the same command begins a night with the new one",
            )

    def _exchange(self, call: Call | None, end: float) -> Answer | Call | Hello:
        """Say something; return what it says.

        Nothing is made of silence: a process that swaps, or that was stopped for a while, is no
        hanging one, and there is the time limit.
        """
        frame = b"" if call is None else frame_message(call)
        left = None if end == math.inf else max(end - time.monotonic(), 0.0)
        reply = self._channel.exchange(frame, silence=math.inf, timeout=left)
        if isinstance(reply, Refusal):
            raise EvaluationError(reply.failure.message, hint=reply.failure.hint)
        return reply

    def _lost(self, error: WorkerError) -> WorkerError:
        """End the process; why it did not answer."""
        if error.cause == "late":
            self.stop()
            _show_cursor()
            return error
        fate = self._process.fate(wait=STOP_SECONDS) if isinstance(error, PipeClosed) else ""
        self._process.kill()
        _show_cursor()
        killed = "SIGKILL" in fate
        return WorkerError(f"its process {fate or error}", cause="killed" if killed else "")


def _read_answer(answer: Value) -> PairNight:
    try:
        return read_pair(cast("dict[str, Any]", answer))
    except (ValueError, TypeError, KeyError) as error:
        raise WorkerError(f"sent a damaged answer: {error!r}") from error


def _log_level() -> int:
    """The level of a log that is shown (``--debug``); 0 for none."""
    root = logging.getLogger()
    return root.level if root.handlers and root.isEnabledFor(logging.INFO) else 0


def _show_cursor() -> None:
    """Show the cursor again, which the live line of a process that was killed had hidden."""
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True).show_cursor()
