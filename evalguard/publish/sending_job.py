"""A process of its own that sends to a tracker: whatever happens there, it ends in time.

W&B's client talks to a program beside it, keeps threads, and waits for both when Python ends;
others repeat requests for minutes. In a process that can be killed, none of that holds up a
verdict.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from evalguard.core.redaction import redacted_text
from evalguard.core.tracked_night import TrackedNight
from evalguard.core.tracked_run import Sent, TrackedRun


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


# A run that is open in this process has a service of its own; and no tracker calls home for itself.
_ENVIRONMENT: Mapping[str, str | None] = {
    "WANDB_SERVICE": None,
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "PYTHONIOENCODING": "utf-8",
}
_LONGEST_REASON = 300
# What is left to do after the answer: threads and helpers that end with the process.
_TIME_TO_END = 5.0
_POLL_EVERY = 0.1


def run_in_process(job: TrackingJob, *, seconds: float, environment: Mapping[str, str]) -> Sent:
    """Do a job in a process of its own, which is killed after ``seconds``.

    Args:
        environment: variables that the process gets unless the user has set them.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="evalguard-track-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job.write(folder)
        fate = _run_to_end(
            folder, seconds, {"WANDB_DATA_DIR": name, "WANDB_DIR": name, **environment}
        )
        sent = read_answer(folder)
        if sent is not None:
            return sent
        return Sent(sink=job.sink, state="failed", reason=fate)


def _run_to_end(folder: Path, seconds: float, defaults: Mapping[str, str]) -> str:
    """Run the process to its end, or to that of its time; how it ended, in words."""
    with open(folder / LOG_NAME, "wb") as log:
        try:
            process = subprocess.Popen(
                [*_python_command(), "-m", "evalguard.publish", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(defaults),
                start_new_session=True,
            )
        except OSError as error:
            return f"no process could be started for it: {error.strerror}"
        try:
            code = _wait(process, folder, seconds)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:.0f} s"
        finally:
            _kill(process)
    return f"the sending process ended with code {code}{_last_log_line(folder / LOG_NAME)}"


def _wait(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> int:
    """Wait for its code; once it has answered, only for a few seconds more.

    It is killed from here, not by itself: a helper that stands still would outlive it.

    Raises:
        subprocess.TimeoutExpired: the process goes on.
    """
    end, answered = time.monotonic() + seconds, False
    while True:
        try:
            return process.wait(_POLL_EVERY)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if not answered and is_answered(folder):
                end, answered = min(end, now + _TIME_TO_END), True
            if now >= end:
                raise


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started, in whatever session."""
    if process.poll() is not None:
        return
    import psutil

    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        family = []
    process.kill()
    for child in family:
        try:
            child.kill()
        except psutil.Error:  # it is gone already
            continue
    process.wait()


def _python_command() -> list[str]:
    """This interpreter; ``-P`` keeps the current folder off its import path, as it is off ours."""
    isolated = sys.version_info >= (3, 11) and not {"", os.getcwd()} & set(sys.path)
    return [sys.executable, *(["-P"] if isolated else [])]


def _environment(defaults: Mapping[str, str]) -> dict[str, str]:
    set_here = {**defaults, **os.environ, **_ENVIRONMENT}
    return {name: value for name, value in set_here.items() if value is not None}


def _last_log_line(log: Path) -> str:
    """The last line that the process wrote, for a reader who has to guess what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" ({redacted_text(last_line)[:_LONGEST_REASON]})" if last_line else ""
