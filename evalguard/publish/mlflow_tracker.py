"""MLflow: a run in the tracking store that it is set to; by default a local sqlite file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from evalguard.core.tracked_run import Sent, TrackedRun
from evalguard.installation import extra_command
from evalguard.publish.sending_job import TrackingJob

EXPERIMENT = "evalguard"
_LONGEST_VALUE = 500
_PARAMS_AT_ONCE = 100


def send_to_mlflow(job: TrackingJob, tracked: TrackedRun) -> Sent:
    """Send a run.

    Raises:
        Exception: whatever MLflow raises.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(job.bounds.init)))
    try:
        import mlflow
    except ModuleNotFoundError as error:
        raise RuntimeError(f"it is not installed: {extra_command('mlflow')}") from error
    if not any(os.environ.get(f"MLFLOW_EXPERIMENT_{what}") for what in ("NAME", "ID")):
        mlflow.set_experiment(EXPERIMENT)
    tags = {"job_type": tracked.job_type, "tags": ",".join(tracked.tags)}
    if tracked.group:
        tags["group"] = tracked.group
    with mlflow.start_run(run_name=tracked.name, tags=tags) as run:
        _log_run(tracked)
    uri = mlflow.get_tracking_uri()
    return Sent(sink="mlflow", state="sent", place=f"run {run.info.run_id} in {uri}")


def _log_run(tracked: TrackedRun) -> None:
    import mlflow

    params = [
        (_allowed(name), str(value)[:_LONGEST_VALUE])
        for name, value in flatten(tracked.config).items()
    ]
    for start in range(0, len(params), _PARAMS_AT_ONCE):
        mlflow.log_params(dict(params[start : start + _PARAMS_AT_ONCE]))
    mlflow.log_metrics({_allowed(name): value for name, value in tracked.scalars.items()})
    mlflow.set_tags({_allowed(name): text for name, text in tracked.summary.items()})
    for name, table in tracked.tables.items():
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        mlflow.log_dict({"columns": list(table.columns), "rows": rows}, f"{name}.json")
    for name, page in tracked.pages.items():
        mlflow.log_text(page, f"{name}.html")
    for as_named, path in tracked.files.items():
        mlflow.log_artifact(path, os.path.dirname(as_named) or None)
    if tracked.alert is not None:
        mlflow.set_tag("alert", f"{tracked.alert.title}: {tracked.alert.text}")


def _allowed(name: str) -> str:
    """A name as MLflow takes it, which refuses the whole run for the comma before a filter."""
    return re.sub(r"[^\w\-. :/]", " ", name.replace(",", ":"), flags=re.ASCII)


def flatten(values: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return ``{"base.name": ...}`` for ``{"base": {"name": ...}}``; lists stay."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, prefix=f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
