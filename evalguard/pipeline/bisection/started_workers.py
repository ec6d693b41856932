"""StartedWorkers: a process for the next model, and one more that gets ready meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from evalguard.errors import WorkerError
from evalguard.execution import Line
from evalguard.models.memory import fits

_ROOM_TO_PREPARE = 2**29  # bytes: what a worker takes before it loads anything, and as much again
_numbers = itertools.count(1)


class StartedWorkers:
    """Starts workers, one after the other, of which nothing is loaded yet.

    Importing torch and transformers takes two seconds, and a small model a tenth of one: so a
    worker can be started ahead. It is a fresh interpreter as any other, not a fork of one.

    Args:
        cache_dir: logs are kept there.
        timeout: seconds that one call to a worker may take; None: no limit.
    """

    def __init__(self, cache_dir: Path, *, timeout: float | None) -> None:
        self._cache_dir = cache_dir
        self._timeout = timeout
        self._number = next(_numbers)
        self._started = 0
        self._ready: Line | None = None

    def take(self, name: str, env: Mapping[str, str | None]) -> Line:
        """A worker for a model with these changes to the environment.

        Raises:
            WorkerError: it cannot be started.
        """
        ready, self._ready = self._ready, None
        if ready is not None and not env and ready.is_running:
            return ready
        if ready is not None:
            ready.hang_up()
        return self._start(name, env)

    def prepare(self, name: str) -> None:
        """Let the next worker get ready, where there is memory for it."""
        if self._ready is None and fits(_ROOM_TO_PREPARE, "cpu"):
            with contextlib.suppress(WorkerError):  # whoever needs one says what is wrong
                self._ready = self._start(name, {}, warm=True)

    def close(self) -> None:
        """End the worker that nobody has taken."""
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.hang_up()

    def _start(self, name: str, env: Mapping[str, str | None], *, warm: bool = False) -> Line:
        # Two logs in turn: a worker that gets ready must not write among another one's last words.
        self._started += 1
        log = f"worker-{os.getpid()}-probe{self._number}{'ab'[self._started % 2]}.log"
        path = self._cache_dir / "logs" / log
        return Line(name, env=env, log=path, timeout=self._timeout, warm=warm)
