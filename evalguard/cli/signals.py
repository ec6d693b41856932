"""Ctrl-C and SIGTERM: both stop a run in the same orderly way."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from evalguard.cli.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED

# `timeout` and some terminals send a signal twice; the second must not cut off the first's answer.
_ONE_SIGNAL = 1.0


class Interrupts:
    """Raises KeyboardInterrupt for SIGINT and for SIGTERM, with which CI cancels a job.

    Only handlers that are Python's own are replaced, and they are put back on leaving: who ignores
    a signal (``nohup``) or handles it keeps that.

    Attributes:
        terminated: whether the last signal was SIGTERM.
    """

    def __init__(self) -> None:
        self.terminated = False
        self._last = float("-inf")
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal, as a shell has it: 130 or 143."""
        return EXIT_TERMINATED if self.terminated else EXIT_INTERRUPTED

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            replaceable = {
                signal.SIGINT: signal.default_int_handler,
                signal.SIGTERM: signal.SIG_DFL,
            }
            for number, default in replaceable.items():
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        repeated, self._last = now - self._last < _ONE_SIGNAL, now
        if repeated:
            return
        self.terminated = number == signal.SIGTERM
        raise KeyboardInterrupt
