"""The actor of a worker on a Ray cluster: where it runs, it has a worker as this machine would."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evalguard.errors import WorkerError
from evalguard.worker.client import PipedWorker
from evalguard.worker.messages import frame_message
from evalguard.worker.pipe import PipeClosed
from evalguard.worker.process import worker_command


class ActorWorker:
    """Starts a worker on its machine; its calls answer side by side.

    Args:
        python: the worker's interpreter; None: this one's.
        arguments: of the worker's command line.
        env: changes to the environment; None takes a variable away.
        log: file that the worker's output is appended to.
    """

    def __init__(
        self,
        python: str | None,
        arguments: Sequence[str],
        env: Mapping[str, str | None],
        log: str,
    ) -> None:
        command = [*worker_command(python or sys.executable), *arguments]
        self._worker = PipedWorker(command, env=env, log=Path(log))

    def whereabouts(self) -> tuple[int, str, str]:
        """Process id, machine and log of the worker."""
        return self._worker.pid, socket.gethostname(), str(self._worker.log)

    def exchange(
        self, frame: bytes, silence: float, timeout: float | None
    ) -> bytes | dict[str, object]:
        """The frame of the worker's next message, or what went wrong with it."""
        try:
            message = self._worker.exchange(frame, silence=silence, timeout=timeout)
            return frame_message(message)
        except WorkerError as error:
            return {
                "text": str(error),
                "cause": error.cause,
                "hint": error.hint,
                "gone": isinstance(error, PipeClosed),
            }

    def fate(self, wait: float) -> str:
        """How the worker ended; "" if it runs on."""
        return self._worker.fate(wait=wait)

    def log_tail(self) -> str:
        """The last lines that the worker logged."""
        return self._worker.log_tail()

    def stuck_in(self) -> str:
        """In which function the worker is."""
        return self._worker.stuck_in()

    def peak_memory(self) -> int | None:
        """The worker's largest resident set."""
        return self._worker.peak_memory()

    def finish(self) -> None:
        """End a worker that was asked to end."""
        self._worker.finish()
