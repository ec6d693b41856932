"""Bounds: how long sending may take, whatever the network does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from evalguard.core.reports.tracked_night import TrackedNight
from evalguard.core.reports.tracked_run import Sent, TrackedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingLimits:
    """Seconds.

    Attributes:
        start: for the sending process to import the tracker and to start what it needs.
        init: to open a run at the server; ``finish``: to upload it and close it.
    """

    start: float = 25.0
    init: float = 10.0
    finish: float = 60.0

    @property
    def online(self) -> float:
        """After this a process that sends is killed."""
        return self.start + self.init + self.finish

    @property
    def local(self) -> float:
        """After this a process that only writes to this machine is killed."""
        return self.start + self.finish


LOG_NAME = "log.txt"
_JOB = "job.json"
_ANSWER = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingJob:
    """A run to send, or a night to report on.

    Attributes:
        run_id: the run's id, the same at every attempt, so that a second one does not make a
            second run.
        folder: where a sink writes that writes to this machine.
        offline: write to this machine only, for a later ``wandb sync``.
    """

    sink: str
    bounds: SendingLimits
    folder: str
    run: TrackedRun | None = None
    night: TrackedNight | None = None
    run_id: str = ""
    offline: bool = False

    def write(self, folder: Path) -> None:
        """Put the job into the folder that both processes share."""
        (folder / _JOB).write_bytes(TypeAdapter(TrackingJob).dump_json(self))

    @classmethod
    def read(cls, folder: Path) -> TrackingJob:
        """Read it there."""
        return TypeAdapter(TrackingJob).validate_json((folder / _JOB).read_bytes())


def write_answer(folder: Path, sent: Sent) -> None:
    """Put the answer beside the job, whole or not at all."""
    half = folder / f"{_ANSWER}.half"
    half.write_bytes(TypeAdapter(Sent).dump_json(sent))
    half.replace(folder / _ANSWER)


def is_answered(folder: Path) -> bool:
    """Whether the answer is there."""
    return (folder / _ANSWER).exists()


def read_answer(folder: Path) -> Sent | None:
    """Read the answer; None if there is none."""
    try:
        return TypeAdapter(Sent).validate_json((folder / _ANSWER).read_bytes())
    except FileNotFoundError:
        return None
