"""Workers on the machines of a Ray cluster: an actor starts one there and hands its bytes on.

What an actor holds is a worker as it is on this machine: its own process with its own environment,
reached by the same frames. So nothing of a model runs in Ray's own processes, and what is known of
a worker that dies, hangs or speaks garbage is known where it runs. An actor or a machine that is
lost is said as such ("lost"): what was asked of it can be asked elsewhere.

Clusters are opened one at a time, as Ray has it, when one is first needed; Ray is not imported
before.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from evalguard.core.ray_plan import RayPlan
from evalguard.errors import EvaluationError, UsageError, WorkerEnd, WorkerError
from evalguard.installation import extra_command
from evalguard.worker.messages import Answer, Call, FrameParser, Hello, Refusal, read_message
from evalguard.worker.pipe import PipeClosed
from evalguard.worker.process import register_worker
from evalguard.worker.ray_actor import ActorWorker

ANSWER_PATIENCE = 10.0
POLL = 0.5


class RayWorker:
    """A worker of an actor; see ``line.WorkerLink``."""

    def __init__(
        self, actor: Any, *, ray: Any, where: str, note_placed: Callable[..., None]
    ) -> None:
        """Take an actor that holds a worker.

        Args:
            ray: the library, connected.
            where: its cluster, as messages say where it is.
            note_placed: called with this worker and ``placed``: it has its place, or has left it.
        """
        self.thread = threading.current_thread()
        self.log: Path | None = None
        self.pid = 0
        self._ray = ray
        self._where = where
        self._note_placed = note_placed
        self._actor = actor
        self._place = ""
        self._lost = False
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Whether it was not ended from here yet."""
        return not self._ended

    def wait_for_place(self, wait: Callable[[], None]) -> None:
        """Wait until the worker has been started somewhere.

        Args:
            wait: raises where that has taken too long.

        Raises:
            WorkerError: no machine has room for it, or it does not start.
        """
        asked = self._actor.whereabouts.remote()
        while not self._is_done(asked):
            wait()
        self.pid, self._place, log = self._get(asked)
        self.log = Path(log)
        self._note_placed(self, placed=True)

    def exchange(
        self, frame: bytes, *, silence: float, timeout: float | None
    ) -> Answer | Call | Hello | Refusal:
        """Send a frame and return the next message, as ``Channel.exchange`` does where it runs."""
        asked = self._actor.exchange.remote(frame, silence, timeout)
        while not self._is_done(asked):
            pass
        reply = cast("bytes | Mapping[str, Any]", self._get(asked))
        if isinstance(reply, bytes):
            (message,) = FrameParser().feed(reply)
            return cast("Answer | Call | Hello | Refusal", read_message(message))
        kind = PipeClosed if reply["gone"] else WorkerError
        raise kind(reply["text"], cause=cast(WorkerEnd, reply["cause"]), hint=reply["hint"])

    def is_running(self) -> bool:
        """Whether neither it nor its actor has ended, as far as that is known."""
        return not (self._ended or self._lost) and not self._told("fate", "ended", 0.0)

    def fate(self, *, wait: float) -> str:
        """How it ended, as a predicate; "" where it runs on, or nobody can tell."""
        return cast(str, self._told("fate", "", wait))

    def log_tail(self) -> str:
        """The last lines that it logged; "" where nobody can tell."""
        return cast(str, self._told("log_tail", ""))

    def stuck_in(self) -> str:
        """In which function it is; "" where it does not tell."""
        return cast(str, self._told("stuck_in", ""))

    def peak_memory(self) -> int | None:
        """Largest resident set so far in bytes; None where nobody can tell."""
        return cast("int | None", self._told("peak_memory", None))

    def finish(self) -> None:
        """End a worker that was asked to end."""
        self._told("finish", None)
        self.kill()

    def interrupt(self) -> None:
        """Kill it while another thread may be waiting for it."""
        self.kill()

    def kill(self) -> None:
        """End the actor; its worker notices, and ends with all that it started. Idempotent."""
        self._note_placed(self, placed=False)
        if self._ended:
            return
        self._ended = True
        if self._ray.is_initialized():
            with contextlib.suppress(Exception):  # it is gone, or the cluster is
                self._ray.kill(self._actor)

    def _is_done(self, asked: Any) -> bool:
        """Wait a moment for an answer.

        Raises:
            WorkerError: the worker was ended from here meanwhile.
        """
        done, _ = self._ray.wait([asked], timeout=POLL)
        if not done and self._ended:
            raise WorkerError("was killed by SIGKILL", cause="killed")
        return bool(done)

    def _get(self, asked: Any) -> Any:
        """What an actor answered.

        Raises:
            WorkerError: the actor is gone, or could not do it.
        """
        try:
            return self._ray.get(asked)
        except self._ray.exceptions.RayActorError as error:
            if self._ended:
                raise WorkerError("was killed by SIGKILL", cause="killed") from error
            self._lost = True
            if getattr(error, "actor_init_failed", False):
                last = [line for line in str(error).splitlines() if line.strip()][-1].strip()
                raise WorkerError(
                    f"a worker cannot be started on a machine of Ray {self._where}: {last}",
                    hint="its machines need the same version of evalguard, and a cache folder "
                    "(--cache-dir) that can be written there",
                ) from error
            location = f" on {self._place}" if self._place else ""
            raise WorkerError(f"was lost with its Ray actor{location}", cause="lost") from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"cannot be reached through Ray: {first_line(error)}") from error

    def _told(self, name: str, otherwise: object, *given: object) -> object:
        """What the actor says beside its calls; ``otherwise`` where it says nothing in time."""
        if self._ended or self._lost:
            return otherwise
        patience = ANSWER_PATIENCE + sum(
            argument for argument in given if isinstance(argument, float)
        )
        asked = getattr(self._actor, name).remote(*given)
        done, _ = self._ray.wait([asked], timeout=patience)
        try:
            return self._get(asked) if done else otherwise
        except WorkerError:
            return otherwise


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, which may be pages of Ray's."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


OLDEST_RAY = (2, 30)
# A cluster that grows by itself needs minutes for a machine; where others are at work already, a
# place that does not come soon is not waited for.
_FIRST_PLACE, _NEXT_PLACE = 600.0, 20.0
# Ray sets the first by what an actor may use; threads are part of what scores are kept under.
_CARRIED = ("OMP_NUM_THREADS",)
_CARRIED_PREFIX = "EVALGUARD_"
# Ray's own names of what an actor takes.
_OF_RAY = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
_OBJECT_STORE = 100 * 2**20  # bytes; what travels are requests and scores


class RayCluster:
    """A Ray cluster that is connected, and the actors that were started there from here."""

    def __init__(self, plan: RayPlan) -> None:
        """Connect, or start a local Ray.

        Raises:
            UsageError: Ray is not installed, or too old.
            EvaluationError: nothing answers at the address, or Ray does not start.
        """
        check_ray()
        if plan.address and plan.address != "auto":
            _check_answers(plan.address)
        self.plan = plan
        self.ray = _import_ray()
        self._lock = threading.Lock()
        self._placed: set[int] = set()
        self._owner = os.getpid()
        try:
            with _kept_handlers():
                self._connect()
        except EvaluationError:
            raise
        except Exception as error:  # whatever of Ray's, grpc's or the system's
            raise EvaluationError(
                f"Ray {plan.where} cannot be used: {first_line(error)}",
                hint="its machines need the same Python and Ray as this one, and a cluster with "
                "tokens this user's (RAY_AUTH_MODE, RAY_AUTH_TOKEN)",
            ) from error

    def _connect(self) -> None:
        if self.plan.address == "auto":
            self.ray.init(address="auto", log_to_driver=False, configure_logging=False)
        elif self.plan.address:
            self.ray.init(f"ray://{self.plan.address}", log_to_driver=False)
        else:
            cpus = (self.plan.actors or 1) * (
                1 if self.plan.num_cpus is None else max(self.plan.num_cpus, 1)
            )
            self.ray.init(
                address="local",  # whatever RAY_ADDRESS says
                num_cpus=max(1, int(cpus)),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_OBJECT_STORE,
            )

    @property
    def gpus_each(self) -> float:
        """GPUs of an actor."""
        if self.plan.num_gpus is not None:
            return self.plan.num_gpus
        return 1.0 if self.ray.cluster_resources().get("GPU", 0) else 0.0

    @property
    def actors(self) -> int:
        """How many actors are to run."""
        if self.plan.actors is not None:
            return self.plan.actors
        if self.gpus_each:
            return max(1, int(self.ray.cluster_resources().get("GPU", 0) / self.gpus_each))
        return max(1, sum(1 for node in self.ray.nodes() if node.get("Alive")))

    def start_worker(
        self, python: str, arguments: Sequence[str], *, env: Mapping[str, str | None], log: Path
    ) -> RayWorker:
        """Start a worker where there is room for it, as ``line.start_here`` does here.

        Raises:
            WorkerError: there is none ("unplaced"), or it cannot be started there.
        """
        plan = self.plan
        carried = {name: os.environ.get(name) for name in _CARRIED}
        carried |= {n: v for n, v in os.environ.items() if n.startswith(_CARRIED_PREFIX)}
        # A machine of the cluster has an interpreter of its own.
        own = None if python == sys.executable else python
        amounts: dict[str, Any] = {
            "num_cpus": 1 if plan.num_cpus is None else plan.num_cpus,
            "num_gpus": self.gpus_each,
            **({} if plan.memory is None else {"memory": plan.memory}),
        }
        if not plan.address:
            self._check_room(amounts)
        actor = self.ray.remote(ActorWorker).options(**amounts, max_concurrency=4, max_restarts=0)
        began = time.monotonic()
        while True:
            handle = actor.remote(own, tuple(arguments), {**carried, **env}, str(log))
            worker = RayWorker(handle, ray=self.ray, where=plan.where, note_placed=self.note_placed)
            register_worker(worker)
            try:
                worker.wait_for_place(partial(self._check_patience, began, amounts))
            except BaseException as error:
                worker.kill()
                if getattr(error, "cause", "") != "lost":
                    raise
                # Ray goes on for a while to place actors on a machine that is gone.
                self._check_patience(began, amounts)
                time.sleep(POLL)
            else:
                return worker

    def _check_patience(self, since: float, amounts: Mapping[str, Any]) -> None:
        """Wait for a place no longer than is reasonable.

        Raises:
            WorkerError: "unplaced".
        """
        with self._lock:
            patience = _NEXT_PLACE if self._placed else _FIRST_PLACE
        if time.monotonic() - since >= patience:
            raise self._unplaced(amounts)

    def _check_room(self, amounts: Mapping[str, Any]) -> None:
        """Compare an actor with what there is of a Ray on this machine, which does not grow.

        Raises:
            WorkerError: "unplaced".
        """
        there = self.ray.cluster_resources()
        if any(there.get(_OF_RAY[name], 0.0) < value for name, value in amounts.items()):
            raise self._unplaced(amounts)

    def _unplaced(self, amounts: Mapping[str, Any]) -> WorkerError:
        wanted = ", ".join(f"{name}={value:g}" for name, value in amounts.items())
        return WorkerError(
            f"no machine of Ray {self.plan.where} has room for one more actor ({wanted})",
            cause="unplaced",
            hint="fewer actors, or less for each: num_gpus, num_cpus, memory",
        )

    def note_placed(self, worker: RayWorker, *, placed: bool) -> None:
        """Note that a worker has its place, or has left it."""
        with self._lock:
            (self._placed.add if placed else self._placed.discard)(id(worker))

    def close(self) -> None:
        """End what was started from here: actors, and a local Ray; a cluster goes on."""
        if os.getpid() == self._owner and self.ray.is_initialized():
            self.ray.shutdown()


_open: dict[RayPlan, RayCluster] = {}
_opening = threading.Lock()


def open_cluster(plan: RayPlan) -> RayCluster:
    """Return the cluster of a plan, connected until ``close_clusters`` or this process's end.

    Raises:
        UsageError, EvaluationError: as ``RayCluster``.
    """
    with _opening:
        if plan not in _open:
            _close_all()
            _open[plan] = RayCluster(plan)
            atexit.register(close_clusters)
        return _open[plan]


def close_clusters() -> None:
    """Disconnect from Ray, and end a local one; it is connected again where it is needed."""
    with _opening:
        _close_all()


def _close_all() -> None:
    while _open:
        _open.popitem()[1].close()


def check_ray() -> None:
    """Refuse, without importing it, a Ray that cannot be used.

    Raises:
        UsageError: it is not installed, or too old.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError as error:
        raise UsageError(
            "--execution ray: Ray is not installed here", hint=extra_command("ray")
        ) from error
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise UsageError(
            f"--execution ray: Ray {version} is installed, {oldest} or later is needed",
            hint=f"{extra_command('ray')} --upgrade",
        )


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"--execution ray: {first_line(error)}", hint=extra_command("ray")
        ) from error


def _check_answers(address: str) -> None:
    """Refuse an address where nobody listens, for which Ray would try for half a minute."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_PATIENCE):
            pass
    except OSError as error:
        raise EvaluationError(
            f"no Ray answers at {address}: {error.strerror or error}",
            hint="the address of the cluster's client server, HOST:10001 (ray start --head "
            "--ray-client-server-port=10001); plain 'ray' starts a local one",
        ) from error


@contextlib.contextmanager
def _kept_handlers() -> Iterator[None]:
    """Keep what this process does at SIGTERM, which Ray would set to an exit of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
