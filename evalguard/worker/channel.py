"""Channel: the parent's end of a worker's pipes, which never waits for what cannot come."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

from evalguard.errors import WorkerError
from evalguard.worker.frames import FrameParser
from evalguard.worker.messages import (
    Answer,
    Beat,
    Call,
    Hello,
    Refusal,
    read_message,
)

_CHUNK = 2**20
_LONGEST_WAIT = 0.5


class PipeClosed(WorkerError):
    """The worker's end of the reply pipe is closed: it has ended, or soon will."""


class Channel:
    """Exchanges one message for one with a worker.

    Reading and writing are interleaved in the calling thread, so that two full pipes cannot block
    each other, and there is no thread that could outlive a call. Errors are ``WorkerError``, said
    as predicates of the worker; after one, the channel is of no further use.
    """

    def __init__(
        self, requests_fd: int, replies_fd: int, *, is_running: Callable[[], bool]
    ) -> None:
        self._requests_fd = requests_fd
        self._replies_fd = replies_fd
        self._is_running = is_running
        self._parser = FrameParser()
        self._inbox: deque[Answer | Beat | Call | Hello | Refusal] = deque()
        self._beats = 0
        self._heard = 0.0
        for fd in (requests_fd, replies_fd):
            os.set_blocking(fd, False)

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send ``frame``, which may be empty; return the next message that is not a heartbeat.

        Args:
            silence: seconds without a single byte after which the worker counts as wedged.
            timeout: seconds after which to give up on a worker that is alive; None: never.

        Raises:
            WorkerError: if it is silent, too slow, or sends garbage.
            PipeClosed: if it is gone.
        """
        pending = memoryview(frame)
        started = self._heard = time.monotonic()
        self._beats = 0
        while True:
            pending, moved = self._move(pending, self._patience(started, silence, timeout))
            while self._inbox:
                message = self._inbox.popleft()
                if not isinstance(message, Beat):
                    return message
                self._beats += 1
            if not moved and not self._is_running():
                raise PipeClosed("closed its pipe")
            self._check_clocks(started, silence, timeout)

    def _patience(self, started: float, silence: float, timeout: float | None) -> float:
        """Return how long to wait for the pipes before the clocks must be looked at again."""
        ends = [self._heard + silence, *([] if timeout is None else [started + timeout])]
        return min(max(min(ends) - time.monotonic(), 0.0), _LONGEST_WAIT)

    def _check_clocks(self, started: float, silence: float, timeout: float | None) -> None:
        now = time.monotonic()
        if now - self._heard >= silence:
            raise WorkerError(
                f"gave no sign of life for {silence:g} s: it is stopped, or stuck in native code",
                cause="late",
            )
        if timeout is not None and now - started >= timeout:
            raise WorkerError(
                f"gave no answer within {timeout:g} s, though it is alive "
                f"({self._beats} heartbeats)",
                cause="late",
                hint="run: {timeout: SECONDS} of the guard file allows a call more time",
            )

    def _move(self, pending: memoryview, wait: float) -> tuple[memoryview, bool]:
        """Wait until something can be read or written; do it.

        Returns:
            What is still to be written, and whether any byte went either way.
        """
        poller = select.poll()
        poller.register(self._replies_fd, select.POLLIN)
        if pending:
            poller.register(self._requests_fd, select.POLLOUT)
        # Rounded up: a wait of 0 ms before the deadline would be a busy loop.
        ready = [fd for fd, _ in poller.poll(int(wait * 1000) + 1)]
        if self._requests_fd in ready:
            pending = self._write(pending)
        if self._replies_fd in ready:
            self._read()
        return pending, bool(ready)

    def _write(self, pending: memoryview) -> memoryview:
        try:
            return pending[os.write(self._requests_fd, pending[:_CHUNK]) :]
        except BlockingIOError:
            return pending
        except BrokenPipeError as error:
            raise PipeClosed("closed its pipe") from error

    def _read(self) -> None:
        data = os.read(self._replies_fd, _CHUNK)
        if not data:
            rest = self._parser.remainder
            raise PipeClosed("closed its pipe" + (f" within a frame ({rest})" if rest else ""))
        self._heard = time.monotonic()
        self._inbox.extend(read_message(message) for message in self._parser.feed(data))
