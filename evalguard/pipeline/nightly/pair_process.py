"""PairProcess: the night's side of the process that compares pairs."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from typing import Any, cast

import evalguard
from evalguard.errors import EvaluationError, WorkerError
from evalguard.execution.channel import Channel, PipeClosed
from evalguard.execution.messages import Answer, Call, Hello, Refusal, framed
from evalguard.execution.process import WorkerProcess, worker_command
from evalguard.night_report import PairNight
from evalguard.pipeline.nightly.pair_work import PairWork
from evalguard.pipeline.nightly.told_pair import read_pair
from evalguard.settings import Value

MODULE = "evalguard.pipeline.nightly.pair_worker"
# What a pair that was told to stop may take to end its workers and to clear its line on the
# terminal; what it has finished is on the disk by then.
_LAST_MOMENTS = 10.0


class PairProcess:
    """One process; it does one piece of work after the other until one of them goes wrong.

    What it prints goes to this process's stderr. Ctrl-C does not reach it, but through ``ask``.

    Raises:
        WorkerError: it cannot be started.
    """

    def __init__(self) -> None:
        command = [
            *worker_command(sys.executable, MODULE),
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
        self._asked = 0

    @property
    def used(self) -> bool:
        """Whether it was asked for anything yet."""
        return self._asked > 0

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
            self._asked += 1
            reply = self._exchange(Call(number=self._asked, name="pair", argument=work.told()), end)
            if not isinstance(reply, Answer) or reply.number != self._asked:
                raise WorkerError(f"sent {type(reply).__name__} where an answer is expected")
            return _read(reply.value)
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
                self._process.fate(wait=_LAST_MOMENTS)
        finally:
            self._process.kill()

    def close(self) -> None:
        """End a process that has nothing to do."""
        try:
            with contextlib.suppress(WorkerError):
                self._exchange(
                    Call(number=0, name="close", argument=None), time.monotonic() + _LAST_MOMENTS
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
        frame = b"" if call is None else framed(call)
        left = None if end == math.inf else max(end - time.monotonic(), 0.0)
        reply = self._channel.exchange(frame, silence=math.inf, timeout=left)
        if isinstance(reply, Refusal):
            raise EvaluationError(reply.failure.message, hint=reply.failure.hint)
        return reply

    def _lost(self, error: WorkerError) -> WorkerError:
        """End the process; why it did not answer."""
        if error.cause == "late":
            self.stop()
            _mend_terminal()
            return error
        fate = self._process.fate(wait=_LAST_MOMENTS) if isinstance(error, PipeClosed) else ""
        self._process.kill()
        _mend_terminal()
        killed = "SIGKILL" in fate
        return WorkerError(f"its process {fate or error}", cause="killed" if killed else "")


def _read(answer: Value) -> PairNight:
    try:
        return read_pair(cast("dict[str, Any]", answer))
    except (ValueError, TypeError, KeyError) as error:
        raise WorkerError(f"sent a damaged answer: {error!r}") from error


def _log_level() -> int:
    """The level of a log that is shown (``--debug``); 0 for none."""
    root = logging.getLogger()
    return root.level if root.handlers and root.isEnabledFor(logging.INFO) else 0


def _mend_terminal() -> None:
    """Show the cursor again, which the live line of a process that was killed had hidden."""
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True).show_cursor()
