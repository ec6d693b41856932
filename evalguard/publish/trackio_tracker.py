"""trackio: a run in its local database, or wherever its own variables say."""

from __future__ import annotations

import os
from typing import Any

from evalguard.core.tracked_run import Sent, TrackedRun
from evalguard.installation import extra_command
from evalguard.publish.sending_job import TrackingJob

PROJECT = "evalguard"


def send_to_trackio(job: TrackingJob, tracked: TrackedRun) -> Sent:
    """Send a run.

    Raises:
        Exception: whatever trackio raises.
    """
    try:
        import trackio
    except ModuleNotFoundError as error:
        raise RuntimeError(f"it is not installed: {extra_command('trackio')}") from error
    project = os.environ.get("TRACKIO_PROJECT") or PROJECT
    run = trackio.init(
        project=project,
        name=f"{tracked.name}-{job.run_id}",
        group=tracked.group or None,
        config={**tracked.config, "job_type": tracked.job_type, "tags": list(tracked.tags)},
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    values: dict[str, Any] = {**tracked.scalars, **tracked.summary}
    for name, table in tracked.tables.items():
        rows = [list(row) for row in table.rows]
        values[name] = trackio.Table(columns=list(table.columns), data=rows)
    for name, page in tracked.pages.items():
        values[name] = trackio.Html(page, inject=False)
    trackio.log(values)
    if tracked.alert is not None:
        trackio.alert(tracked.alert.title, tracked.alert.text, level=trackio.AlertLevel.ERROR)
    for path in tracked.files.values():
        trackio.log_artifact(path, type="evalguard")
    trackio.finish()
    where = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
    return Sent(sink="trackio", state="sent", place=where or f"{run.name} in project {project}")
