"""A W&B run that is open in this process: it is used, and left open."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from evalguard.core.markdown_text import break_links
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.tracked_run import Sent, TrackedRun

if TYPE_CHECKING:
    import wandb


PREFIX = "evalguard/"
_LONGEST_REASON = 300


def log_into_open_run(run: wandb.Run, tracked: TrackedRun, *, seconds: float) -> Sent:
    """Log into somebody's run, under names that begin with ``evalguard/``; never finish it.

    W&B sends in the background and its owner waits for that. Only what it asks its server first is
    waited for here, and after ``seconds`` not even that.
    """
    failures: list[str] = []

    def log() -> None:
        try:
            log_run(run, tracked, prefix=PREFIX, copies=True)
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


_ARTIFACT_TYPE = "evalguard"
_LONGEST_NAME = 128


def log_run(run: wandb.Run, tracked: TrackedRun, *, prefix: str = "", copies: bool) -> None:
    """Log numbers, tables, pages, files and the alert, in one step of the run.

    Args:
        prefix: of every name, where the run is somebody else's.
        copies: whether W&B keeps copies of the files: they may be gone when it needs them.
    """
    import wandb

    # W&B draws a chart of every number, some dozens a task, among which plot and tables are lost.
    for name in tracked.scalars:
        if name not in tracked.charts and "*" not in name:  # which W&B reads as a pattern
            run.define_metric(f"{prefix}{name}", hidden=True)
    values: dict[str, Any] = dict(tracked.scalars)
    for name, table in tracked.tables.items():
        rows = [list(row) for row in table.rows]
        values[name] = wandb.Table(columns=list(table.columns), data=rows)
    for name, page in tracked.pages.items():
        values[name] = wandb.Html(page, inject=False)
    run.log({f"{prefix}{name}": value for name, value in values.items()})
    run.summary.update({f"{prefix}{name}": text for name, text in tracked.summary.items()})
    if tracked.alert is not None:
        # W&B passes an alert on to Slack as it is.
        run.alert(break_links(tracked.alert.title), break_links(tracked.alert.text), level="ERROR")
    if tracked.files:
        run.log_artifact(_artifact(tracked, copies=copies))


def _artifact(tracked: TrackedRun, *, copies: bool) -> wandb.Artifact:
    """The run's files as a version of one artifact per name of run."""
    import wandb

    name = re.sub(r"[^\w.-]", "-", tracked.name, flags=re.ASCII)[:_LONGEST_NAME]
    artifact = wandb.Artifact(name or _ARTIFACT_TYPE, type=_ARTIFACT_TYPE)
    policy = "mutable" if copies else "immutable"
    for as_named, path in tracked.files.items():
        artifact.add_file(path, name=as_named, skip_cache=True, policy=policy)
    return artifact
