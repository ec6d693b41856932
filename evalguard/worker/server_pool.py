"""Which servers run: all models that need an equal one share it, and only some stay idle."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evalguard.errors import EvaluationError, WorkerError
from evalguard.worker.model_server import ModelServer, ServerCommand


@dataclass(frozen=True, slots=True, eq=False)
class ServerLease:
    """The use of a server by one model."""

    server: ModelServer
    _pool: ServerPool

    def release(self) -> None:
        """Need it no longer. May be called twice."""
        self._pool.release(self)


class ServerPool:
    """Starts servers that are needed, and keeps a few that were needed before.

    Attributes:
        most: how many may run where some are idle: one more is stopped for each that is started.
    """

    def __init__(self) -> None:
        self.most = 2
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._running: list[ModelServer] = []  # the most recently used last
        self._leases: set[ServerLease] = set()
        self._holders = 0
        self._number = 0

    def lease(self, wanted: ServerCommand, logs: Path) -> ServerLease:
        """Return the use of a server that was started so, starting it where none runs.

        Raises:
            EvaluationError: as starting does.
        """
        with self._lock:
            server = self._find(wanted) or self._start(wanted, logs)
            server.users += 1
            lease = ServerLease(server, self)
            self._leases.add(lease)
            return lease

    def release(self, lease: ServerLease) -> None:
        """Take a lease back; outside of ``keep_servers`` its server is stopped."""
        with self._lock:
            if lease not in self._leases:
                return
            self._leases.remove(lease)
            lease.server.users -= 1
            if not self._holders:
                self._stop_idle(0)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep idle servers for whoever needs an equal one, until the outermost of these ends."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self.close()

    def close(self) -> None:
        """Stop all servers, those in use too, and one that is being started."""
        self._closing.set()
        try:
            with self._lock:
                self._leases.clear()
                while self._running:
                    self._running.pop().stop()
        finally:
            self._closing.clear()
            self.most = 2

    def _find(self, wanted: ServerCommand) -> ModelServer | None:
        for server in [one for one in self._running if one.key == wanted.key]:
            self._running.remove(server)
            if server.answers():
                self._running.append(server)
                return server
            server.stop()  # whoever uses it has lost it
        return None

    def _start(self, wanted: ServerCommand, logs: Path) -> ModelServer:
        self._stop_idle(self.most - 1)
        if not wanted.takes_free_port:
            self._stop_idle(0)  # one of them may have the port
        self._number += 1
        safe = re.sub(r"[^\w.+-]", "_", wanted.name)
        log = logs / f"server-{os.getpid()}-{self._number}-{safe}.log"
        try:
            server = ModelServer(wanted, log, self._closing)
        except WorkerError as error:
            raise EvaluationError(
                f"the server of '{wanted.name}' cannot be started: {error}", hint=error.hint
            ) from error
        self._running.append(server)
        return server

    def _stop_idle(self, left: int) -> None:
        """Stop idle servers, those not used for longest first, until ``left`` run."""
        for server in [one for one in self._running if not one.users]:
            if len(self._running) <= left:
                return
            self._running.remove(server)
            server.stop()


_pool = ServerPool()


def lease_server(wanted: ServerCommand, logs: Path) -> ServerLease:
    """Return the use of a server, starting it where none that is equal runs in this process.

    Raises:
        EvaluationError: it cannot be started, or is not ready in time.
    """
    return _pool.lease(wanted, logs)


@contextmanager
def keep_servers(most: int | None = None) -> Iterator[None]:
    """Keep servers between models that need equal ones; stop all when the outermost of these ends.

    Args:
        most: how many may run where some are idle; None: as it is, at first one per side.
    """
    with _pool.kept():
        if most is not None:
            _pool.most = most
        yield
