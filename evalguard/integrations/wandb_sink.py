"""W&B: a run of our own, opened, filled and finished in the sending process."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from evalguard.core.reports.tracked_run import Sent, TrackedRun
from evalguard.integrations.jobs import TrackingJob
from evalguard.integrations.wandb_run import log_run

if TYPE_CHECKING:
    import wandb


WANDB_PROJECT = "evalguard"


# The client puts the machine's name into every run, unless it is told one.
_NO_HOST = "-"


class NotOnlineError(Exception):
    """W&B is not to be reached from here, because somebody wants that."""


def send_to_wandb(job: TrackingJob, tracked: TrackedRun) -> Sent:
    """Send a run to the server, or write it for ``wandb sync``.

    Raises:
        Exception: whatever W&B raises where it does not answer, or does not take the run.
    """
    import wandb

    session = wandb.setup().settings
    if session.mode == "disabled":
        return Sent(sink="wandb", state="failed", reason="W&B is switched off here")
    if session.mode == "offline" and not job.offline:
        raise NotOnlineError("W&B is set to offline here")
    run = wandb.init(
        project=session.project or WANDB_PROJECT,
        id=session.run_id or job.run_id,
        name=session.run_name or tracked.name,
        group=session.run_group or tracked.group or None,
        job_type=tracked.job_type,
        tags=[*tracked.tags, *(session.run_tags or ())],
        config=dict(tracked.config),
        mode="offline" if job.offline else "online",
        settings=_settings(job),
    )
    folder = Path(run.dir).parent
    log_run(run, tracked, copies=job.offline)
    place = str(folder) if job.offline else run.url or ""
    run.finish(exit_code=0)
    if job.offline:
        shown = _relative_path(folder)
        command = f"wandb sync {shlex.quote(shown)}"
        return Sent(sink="wandb", state="offline", place=shown, next_command=command)
    return Sent(sink="wandb", state="sent", place=place)


def _settings(job: TrackingJob) -> wandb.Settings:
    """Nothing is asked, printed or collected beside the run itself; all of it ends in time.

    evalguard's own environment is in the config: what W&B would look up of this machine (its name,
    repository, arguments, packages) may be nobody's business.
    """
    import wandb

    return wandb.Settings(
        init_timeout=job.bounds.init,
        finish_timeout=job.bounds.finish,
        finish_timeout_raises=True,
        host=_NO_HOST,
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        save_code=False,
        symlink=False,
        label_disable=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _relative_path(folder: Path) -> str:
    """A path from the current folder on, if it lies below."""
    here = Path(os.getcwd())
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
