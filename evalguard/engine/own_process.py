"""A process of its own that does one piece of work after the other, and what is said to it."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

import evalguard
from evalguard.core.settings import Value
from evalguard.errors import EXIT_PASSED, EvalguardError, EvaluationError, Interrupted, WorkerError
from evalguard.worker.messages import Answer, Call, Hello, Refusal, frame_message, to_exception
from evalguard.worker.pipe import Channel, PipeClosed
from evalguard.worker.process import WorkerProcess, hide_builds, worker_command
from evalguard.worker.server import CallHandler, serve_calls

# What work that was told to stop may take to end its workers and to clear its line on the
# terminal; what it has finished is on the disk by then.
STOP_SECONDS = 10.0


class OwnProcess:
    """One process; it does one piece of work after the other until one of them goes wrong.

    What it prints goes to this process's stderr. Ctrl-C does not reach it, but through ``ask``.

    Args:
        module: its program, which ``serve_work`` serves.
        env: variables set over this process's own; None takes one away.

    Raises:
        WorkerError: it cannot be started.
    """

    def __init__(self, module: str, *, env: Mapping[str, str | None] | None = None) -> None:
        command = [
            *worker_command(sys.executable, module),
            "--import-path",
            json.dumps([str(entry) for entry in sys.path]),
            "--log-level",
            str(_log_level()),
        ]
        self._process = WorkerProcess(command, env=env or {}, log=None)
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

    def ask(self, name: str, argument: Value, *, end: float = math.inf) -> Value:
        """Have a piece of work done.

        Args:
            end: the time (``time.monotonic()``) after which the process is killed with all that it
                started.

        Raises:
            WorkerError: the process died ("killed", or no cause), or its time was up ("late"). It
                is gone then.
            EvalguardError: what the work raised.
            KeyboardInterrupt: on Ctrl-C; the process was stopped.
        """
        try:
            if not self.used:
                self._greet(end)
            self._requests += 1
            reply = self._exchange(Call(number=self._requests, name=name, argument=argument), end)
            if not isinstance(reply, Answer) or reply.number != self._requests:
                raise WorkerError(f"sent {type(reply).__name__} where an answer is expected")
            value: Value = reply.value
            return value
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
                f"evalguard {evalguard.__version__} was replaced by {hello.evalguard} while it ran",
                hint="the same command begins anew with the new one",
            )

    def _exchange(self, call: Call | None, end: float) -> Answer | Call | Hello:
        """Say something; return what it says.

        Nothing is made of silence: a process that swaps, or that was stopped for a while, is no
        hanging one, and there is the time limit.
        """
        frame = b"" if call is None else frame_message(call)
        remaining = None if end == math.inf else max(end - time.monotonic(), 0.0)
        reply = self._channel.exchange(frame, silence=math.inf, timeout=remaining)
        if isinstance(reply, Refusal):
            raise _refused(reply)
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


def _refused(reply: Refusal) -> EvalguardError:
    """What the work raised; no error of its own workers is one of the process."""
    failure = reply.failure
    error = to_exception(failure, model="", log="") if failure.expected else None
    if error is None or isinstance(error, WorkerError):
        return EvaluationError(failure.message, hint=failure.hint)
    return error


def _log_level() -> int:
    """The level of a log that is shown (``--debug``); 0 for none."""
    root = logging.getLogger()
    return root.level if root.handlers and root.isEnabledFor(logging.INFO) else 0


def _show_cursor() -> None:
    """Show the cursor again, which the live line of a process that was killed had hidden."""
    if sys.stderr.isatty():
        from rich.console import Console

        Console(stderr=True).show_cursor()


_PARENT_DEATH_SIGNAL = 1


def serve_work(desk: CallHandler, program: str, arguments: Sequence[str] | None = None) -> int:
    """Do work until the process that started this one closes; return the exit code."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--import-path", type=json.loads, required=True, metavar="JSON")
    parser.add_argument("--log-level", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    sys.path[:] = options.import_path
    faulthandler.enable()
    if options.log_level:
        logging.basicConfig(level=options.log_level, format="%(name)s: %(message)s")
    else:
        hide_builds()
    leave_signals_to_the_parent()
    try:
        serve_calls(options.requests, options.replies, desk)
    except KeyboardInterrupt:
        return Interrupted.exit_code
    return EXIT_PASSED


def leave_signals_to_the_parent() -> None:
    """Stop when the process that started this one says so, and die with it.

    One in the background may have had Ctrl-C ignored, which is inherited. systemd sends SIGTERM
    to every process of a unit: what it means for this work, its parent decides. (A handler and not
    SIG_IGN, which processes that are started from here would inherit.)
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _ignore_signal)
    if sys.platform == "linux":
        # A parent that is killed closes its pipe, which a thread here notices; one that is kept
        # from running by native code notices nothing. The parent waits in the thread that started
        # this process: it ends no sooner than the work.
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """A signal that was meant for the parent."""
