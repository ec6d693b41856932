"""Which servers run: all models that need an equal one share it, and only some stay idle."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from evalguard.core.findings import quote_message
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError, WorkerError
from evalguard.worker.process import WorkerProcess, worker_command

_SUPERVISOR = "evalguard.worker.supervisor"
_PORT = "{port}"
_STOP_PATIENCE = 10.0  # seconds that a server gets to end by itself
_ASK_EVERY = (0.05, 0.5)  # seconds between two looks whether it is ready: first, and at most
_ANSWER_WITHIN = 10.0  # seconds; a server that answers nothing in them is not ready
_UNAUTHORISED = (401, 403)  # it is there, and wants the key that the model type sends


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """What a server is started with; ``{port}`` still stands where its port is to be.

    Attributes:
        name: of the model that it answers for.
        env: changes to this process's environment; None takes a variable away.
        ready: path or URL that answers when it can be asked; "": its list of models.
        start_limit: seconds until then.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str | None]
    url: str
    ready: str
    folder: str
    start_limit: float

    @property
    def key(self) -> str:
        """Digest of all that the server reads of this: one with an equal key is the same."""
        return digest_of([list(self.command), dict(self.env), self.url, self.folder])

    @property
    def takes_free_port(self) -> bool:
        """Whether evalguard chooses the port."""
        return any(_PORT in text for text in (*self.command, *filter(None, self.env.values())))

    def at_port(self, port: int) -> ServerCommand:
        """The same with a port filled in."""

        def fill(text: str) -> str:
            return text.replace(_PORT, str(port))

        return ServerCommand(
            name=self.name,
            command=tuple(map(fill, self.command)),
            env={name: value and fill(value) for name, value in self.env.items()},
            url=fill(self.url),
            ready=fill(self.ready),
            folder=self.folder,
            start_limit=self.start_limit,
        )

    @property
    def ready_url(self) -> str:
        """The address that is asked until it answers."""
        if "://" in self.ready:
            return self.ready
        root = "{0.scheme}://{0.netloc}".format(urlsplit(self.url))
        if self.ready:
            return root + self.ready
        before, v1, _ = self.url.partition("/v1")
        return f"{before if v1 else root}/v1/models"


class ModelServer:
    """A server that was started, in a process group that ends with this process.

    Attributes:
        url: what a model type asks.
        users: how many models are scored with it at present.
    """

    def __init__(self, wanted: ServerCommand, log: Path, closing: threading.Event) -> None:
        """Start it, and wait until it can be asked.

        Args:
            closing: set by another thread to give up.

        Raises:
            EvaluationError: it ends or does not answer in time, with the last lines of its log; or
                something else answers in its place.
        """
        self.key = wanted.key
        self.users = 0
        self._log = log
        self._wanted = wanted.at_port(_find_free_port())
        self.url = self._wanted.url
        if not wanted.takes_free_port:
            self._refuse_occupied()
        supervisor = worker_command(sys.executable, _SUPERVISOR)
        self._process = WorkerProcess(supervisor, env={}, log=log)
        try:
            self._send_job()
            self._wait_until_ready(closing)
            self._process.share()  # until then it goes with what this thread is to end
        except BaseException:
            self.stop()
            raise

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.is_open and self._process.is_running()

    def answers(self) -> bool:
        """Whether it runs and answers at present."""
        return self.is_running and not self._ask()

    def failure(self, what: str, *, was_asked: bool = True) -> EvaluationError:
        """The error that says what a server did, with the last lines that it wrote.

        Args:
            was_asked: whether these may hold words of documents: those of its start do not.
        """
        message, end = f"the server of '{self._wanted.name}' {what}", self._process.log_tail()
        hint = f"the whole log: {self._log}"
        if was_asked:
            return EvaluationError(message, quotes=quote_message(end), hint=hint)
        return EvaluationError(f"{message}: {end}" if end.strip() else message, hint=hint)

    def fate(self, *, wait: float = 0.0) -> str:
        """How it ended, as a predicate; "" where it runs on after ``wait`` seconds."""
        return self._process.fate(wait=wait) if self._process.is_open else "was stopped"

    def stop(self) -> None:
        """Tell it to end, and kill it with all that it started if it does not. Idempotent."""
        try:
            if self.is_running:
                with contextlib.suppress(OSError):
                    os.write(self._process.requests_fd, b"stop\n")
                self._process.fate(wait=_STOP_PATIENCE + _ANSWER_WITHIN)
        finally:
            self._process.kill()

    def _send_job(self) -> None:
        changed = {**os.environ, **self._wanted.env}
        job = {
            "command": list(self._wanted.command),
            "folder": self._wanted.folder,
            "env": {name: value for name, value in changed.items() if value is not None},
            "patience": _STOP_PATIENCE,
        }
        # A supervisor that died at once is seen while waiting, with its log.
        with contextlib.suppress(BrokenPipeError), _writer(self._process.requests_fd) as pipe:
            pipe.write(json.dumps(job).encode() + b"\n")

    def _wait_until_ready(self, closing: threading.Event) -> None:
        # Not tenacity's: each look first asks whether the process lives, and closing wakes a pause.
        limit = self._wanted.start_limit
        until, pause = time.monotonic() + limit, _ASK_EVERY[0]
        problem = "it was not asked yet"
        while time.monotonic() < until:
            if not self.is_running:
                raise self.failure(f"{self.fate()} before it was ready", was_asked=False)
            problem = self._ask()
            if not problem and self.is_running:
                return
            if closing.wait(pause):
                raise EvaluationError(f"the start of the server of '{self._wanted.name}' was ended")
            pause = min(2 * pause, _ASK_EVERY[1])
        failure = self.failure(f"was not ready within {limit:g} s ({problem})", was_asked=False)
        raise EvaluationError(
            str(failure),
            hint=f"{failure.hint}; serve: {{ready: PATH}} says what answers when it is ready, "
            "start_limit: SECONDS allows it more time",
        )

    def _ask(self) -> str:
        """What is wrong with the answer to whether it is ready; "" where nothing is."""
        where = self._wanted.ready_url
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(where, timeout=_ANSWER_WITHIN):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return "" if error.code in _UNAUTHORISED else f"{where} answered {error.code}"
        except (OSError, ValueError) as error:  # http.client's errors are OSErrors or ValueErrors
            return f"{where}: {getattr(error, 'reason', error)}"
        except Exception as error:  # noqa: BLE001  half an answer: http.client.HTTPException
            return f"{where}: {type(error).__name__}"

    def _refuse_occupied(self) -> None:
        parts = urlsplit(self._wanted.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((parts.hostname or "127.0.0.1", port), timeout=2.0),
        ):
            raise EvaluationError(
                f"port {port} is taken: something answers at {self._wanted.url} before the server "
                f"of '{self._wanted.name}' was started",
                hint="write {port} in serve.command and serve.url: evalguard fills in a free one",
            )


@contextmanager
def _writer(descriptor: int) -> Iterator[BinaryIO]:
    with os.fdopen(os.dup(descriptor), "wb") as pipe:
        yield pipe


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        for server in [running for running in self._running if running.key == wanted.key]:
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
        for server in [running for running in self._running if not running.users]:
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
