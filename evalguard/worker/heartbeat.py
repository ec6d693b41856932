"""Heartbeat: tells the parent, while a call is in work, that the worker is alive."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from evalguard.worker.messages import (
    Beat,
    frame_message,
)
from evalguard.worker.process_family import end_process_group
from evalguard.worker.worker_pipes import Outbox


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
