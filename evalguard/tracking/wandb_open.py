"""A W&B run that is open in this process: it is used, and left open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from evalguard.redaction import redacted_text
from evalguard.tracked_run import Sent, TrackedRun
from evalguard.tracking.wandb_run import log_all

if TYPE_CHECKING:
    import wandb

PREFIX = "evalguard/"
_LONGEST_REASON = 300


def log_into(run: wandb.Run, tracked: TrackedRun, *, seconds: float) -> Sent:
    """Log into somebody's run, under names that begin with ``evalguard/``; never finish it.

    W&B sends in the background and its owner waits for that. Only what it asks its server first is
    waited for here, and after ``seconds`` not even that.
    """
    failures: list[str] = []

    def log() -> None:
        try:
            log_all(run, tracked, prefix=PREFIX, copies=True)
            run.config.update({"evalguard": dict(tracked.config)}, allow_val_change=True)
        except Exception as error:  # noqa: BLE001 - whatever W&B raises: the reason is told
            failures.append(redacted_text(" ".join(str(error).split()))[:_LONGEST_REASON])

    thread = threading.Thread(target=log, name="evalguard-wandb", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        failures.append(f"the open run did not take it within {seconds:.0f} s")
    if failures:
        return Sent(sink="wandb", state="failed", reason=failures[0])
    return Sent(sink="wandb", state="sent", place=run.url or f"the open run {run.name or run.id}")
