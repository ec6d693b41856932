"""Both ends of the pipe between parent and worker, and the beat that says the worker is alive."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from evalguard.errors import WorkerError
from evalguard.worker.messages import (
    Answer,
    Beat,
    Call,
    FrameParser,
    Hello,
    RawMessage,
    Refusal,
    frame_message,
    read_message,
)
from evalguard.worker.process_family import end_process_group

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


class Outbox:
    """Writes whole frames; calls and heartbeats come from two threads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, frame: bytes) -> None:
        """Write one frame; wait while the pipe is full.

        Raises:
            OSError: if the parent is gone.
        """
        rest = memoryview(frame)
        with self._lock:
            while rest:
                rest = rest[os.write(self._fd, rest) :]


class Inbox:
    """Reads calls in a thread, so that the parent's end is noticed also during a call.

    When the parent closes the pipe without a call to close, it is gone: the worker ends at once.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._calls: SimpleQueue[Call | WorkerError] = SimpleQueue()
        threading.Thread(target=self._read, name="evalguard-inbox", daemon=True).start()

    def next(self) -> Call:
        """Wait for the next call.

        Raises:
            WorkerError: if what arrived is not a call.
        """
        call = self._calls.get()
        if isinstance(call, WorkerError):
            raise call
        return call

    def _read(self) -> None:
        parser = FrameParser()
        try:
            while data := os.read(self._fd, _CHUNK):
                for message in parser.feed(data):
                    self._calls.put(_to_call(message))
        except WorkerError as error:
            self._calls.put(error)
        else:
            end_process_group("the process that started it is gone")


def _to_call(message: RawMessage) -> Call:
    content = read_message(message)
    if not isinstance(content, Call):
        raise WorkerError(f"sent {type(content).__name__} where a call is expected")
    return content


class Heartbeat:
    """A thread that sends a Beat every ``interval`` seconds of a call.

    Between calls it is quiet: nobody reads then, and the pipe would fill. It also ends the worker
    when its parent has changed, which an inherited copy of the request pipe in some other child
    of the parent would hide from the Inbox.
    """

    def __init__(self, outbox: Outbox, interval: float) -> None:
        self._outbox = outbox
        self._interval = interval
        self._busy = False
        self._answered = 0
        self._stop = threading.Event()
        self._parent = os.getppid()
        threading.Thread(target=self._run, name="evalguard-heartbeat", daemon=True).start()

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Send heartbeats while the block runs; count it as one call."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._answered += 1

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            if os.getppid() != self._parent:
                end_process_group("the process that started it is gone")
            if self._busy:
                try:
                    self._outbox.write(frame_message(Beat(answered=self._answered)))
                except OSError as error:
                    end_process_group(f"it cannot reach the process that started it: {error}")
