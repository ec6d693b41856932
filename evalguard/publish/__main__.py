"""The sending process: ``python -m evalguard.publish FOLDER`` does the job that lies there."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

from evalguard.core.redaction import redacted_text
from evalguard.core.tracked_run import Sent
from evalguard.plugins import TRACKERS
from evalguard.publish.sending_job import TrackingJob, write_answer
from evalguard.publish.wandb_tracker import save_night_report

# Who started this process kills it in time; the alarm is for when nobody is left to do so.
_ALARM_MARGIN = 15
_LONGEST_REASON = 300


def main() -> None:
    """Do the job, answer, and end in time even if nobody is left to see to it."""
    folder = Path(sys.argv[1])
    job = TrackingJob.read(folder)
    signal.alarm(int(job.bounds.online) + _ALARM_MARGIN)
    try:
        sent = _run_job(job)
    except Exception as error:  # noqa: BLE001 - whatever a tracker raises: the reason is told
        sent = Sent(sink=job.sink, state="failed", reason=_error_line(error))
    write_answer(folder, sent)


def _run_job(job: TrackingJob) -> Sent:
    if job.night is not None:
        return save_night_report(job.night)
    if job.run is None:
        raise ValueError("the job holds nothing to send")
    tracker = TRACKERS.find(job.sink)
    sent = tracker.load()(job, job.run)
    if not isinstance(sent, Sent):
        raise TypeError(f"{tracker.origin} returned {type(sent).__name__}, not what became of it")
    return replace(sent, sink=job.sink)


def _error_line(error: Exception) -> str:
    """An error in one line, without secrets."""
    words = " ".join(str(error).split()).partition(" Consider increasing the init_timeout")[0]
    return redacted_text(words or type(error).__name__)[:_LONGEST_REASON]


if __name__ == "__main__":
    main()
