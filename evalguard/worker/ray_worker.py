"""RayWorker: the driver's side of one worker on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from evalguard.errors import WorkerEnd, WorkerError
from evalguard.worker.channel import PipeClosed
from evalguard.worker.frames import FrameParser
from evalguard.worker.messages import (
    Answer,
    Call,
    Hello,
    Refusal,
    read_message,
)

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
            place = f" on {self._place}" if self._place else ""
            raise WorkerError(f"was lost with its Ray actor{place}", cause="lost") from error
        except self._ray.exceptions.RayError as error:
            raise WorkerError(f"cannot be reached through Ray: {first_line(error)}") from error

    def _told(self, name: str, otherwise: object, *given: object) -> object:
        """What the actor says beside its calls; ``otherwise`` where it says nothing in time."""
        if self._ended or self._lost:
            return otherwise
        patience = ANSWER_PATIENCE + sum(one for one in given if isinstance(one, float))
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
