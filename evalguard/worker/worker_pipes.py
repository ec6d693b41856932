"""Inbox and Outbox: the worker's ends of its two pipes."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

from evalguard.errors import WorkerError
from evalguard.worker.frames import FrameParser, RawMessage
from evalguard.worker.messages import (
    Call,
    read_message,
)
from evalguard.worker.process_family import end_process_group

_CHUNK = 2**20


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
