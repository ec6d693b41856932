"""What a tracked run is in terms of W&B: the same for a run of ours and for one that was open."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from evalguard.escaping import unlinked
from evalguard.tracked_run import TrackedRun

if TYPE_CHECKING:
    import wandb

_ARTIFACT_TYPE = "evalguard"
_LONGEST_NAME = 128


def log_all(run: wandb.Run, tracked: TrackedRun, *, prefix: str = "", copies: bool) -> None:
    """Log numbers, tables, pages, files and the alert, in one step of the run.

    Args:
        prefix: of every name, where the run is somebody else's.
        copies: whether W&B keeps copies of the files: they may be gone when it needs them.
    """
    import wandb

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
        run.alert(unlinked(tracked.alert.title), unlinked(tracked.alert.text), level="ERROR")
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
