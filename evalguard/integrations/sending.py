"""Sending: a run to one sink, in bounded time; what fails at W&B stays here to be synced."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evalguard.core.reports.tracked_night import TrackedNight
from evalguard.core.reports.tracked_run import Sent, TrackedRun
from evalguard.integrations.job_process import run_in_process
from evalguard.integrations.jobs import SendingLimits, TrackingJob
from evalguard.integrations.wandb_here import find_open_run
from evalguard.integrations.wandb_run import log_into_open_run

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def send_run(
    sink: str,
    run: TrackedRun,
    *,
    folder: Path,
    bounds: SendingLimits | None = None,
    unreached: str = "",
) -> Sent:
    """Send a run; what a tracker does wrong becomes the answer's reason.

    Args:
        folder: where W&B keeps a run that did not reach its server, and the run's files.
        bounds: how long each part may take.
        unreached: why the tracker is not asked at all; "" for it is.

    Raises:
        KeyboardInterrupt: on Ctrl-C; nothing goes on in the background.
    """
    bounds = bounds or SendingLimits()
    job = TrackingJob(
        sink=sink, run=run, run_id=_new_id(), folder=str(folder.absolute()), bounds=bounds
    )  # fmt: skip
    if unreached:
        sent = _write_offline(job) if sink == "wandb" else Sent(sink=sink, state="failed")
        return replace(sent, reason="; ".join(filter(None, (unreached, sent.reason))))
    if sink != "wandb":
        return run_in_process(job, seconds=bounds.online, environment={})
    own = find_open_run()
    if own is not None:
        return log_into_open_run(own, run, seconds=bounds.finish)
    return _send_to_wandb(job)


def save_night(night: TrackedNight, *, bounds: SendingLimits | None = None) -> Sent:
    """Save a report on a night to W&B; as ``send_run`` otherwise."""
    bounds = bounds or SendingLimits()
    job = TrackingJob(sink="wandb", night=night, folder=os.getcwd(), bounds=bounds)
    return run_in_process(job, seconds=bounds.online, environment={})


def _send_to_wandb(job: TrackingJob) -> Sent:
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun"):
        return _write_offline(job)
    sent = run_in_process(job, seconds=job.bounds.online, environment={})
    if sent.state != "failed":
        return sent
    kept = _write_offline(job)
    both = f"{sent.reason}; nor could it be kept for later: {kept.reason}"
    return replace(kept, reason=both if kept.state == "failed" else sent.reason)


def _write_offline(job: TrackingJob) -> Sent:
    """Write the run to this machine, with copies of its files, so that it can be synced."""
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    here: Mapping[str, str] = {
        "WANDB_DIR": job.folder,
        "WANDB_DATA_DIR": str(Path(job.folder) / "wandb"),
    }
    offline = replace(job, offline=True)
    return run_in_process(offline, seconds=job.bounds.local, environment=here)


def _new_id() -> str:
    """An id as W&B makes them: eight letters and digits."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(8))
