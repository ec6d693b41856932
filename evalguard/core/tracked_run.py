"""TrackedRun: a finished comparison as experiment trackers take it, and what became of it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JobType = Literal["compare", "bisect", "nightly"]
# sent     it is where the sink keeps it
# offline  it is on this machine, whole, and a command sends it
# failed   it is nowhere but in the run folder
SentState = Literal["sent", "offline", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTracker:
    """A tracker that evalguard brings: how people write it, and ``package.module:function``."""

    title: str
    function: str


# The one list of them; other packages add theirs by entry points (plugins.py).
BUILT_IN_TRACKERS: Mapping[str, BuiltInTracker] = {
    "wandb": BuiltInTracker(title="W&B", function="evalguard.publish.wandb_tracker:send_to_wandb"),
    "trackio": BuiltInTracker(
        title="trackio", function="evalguard.publish.trackio_tracker:send_to_trackio"
    ),
    "mlflow": BuiltInTracker(
        title="MLflow", function="evalguard.publish.mlflow_tracker:send_to_mlflow"
    ),
}
NO_TRACKER = "none"


def tracker_title(name: str) -> str:
    """How people write a tracker's name; another package's is written as it is."""
    return BUILT_IN_TRACKERS[name].title if name in BUILT_IN_TRACKERS else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What somebody should be told at once."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTable:
    """A table: names of columns, and rows of plain values (text, number, bool or None)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run of a tracker; plain data, without secrets and without numbers that JSON cannot hold.

    Attributes:
        name: as people see it; ``group`` is what it belongs to (a night, a pull request), "" for
            nothing.
        config: what was asked for, nested.
        scalars: name to number, ``TASK/METRIC/sigma`` and the like.
        charts: those of the scalars that people look for first; a tracker that draws every number
            that it gets draws these alone.
        summary: name to what is not a number: outcomes, the sentence.
        tables, pages: name to table, and to a self-contained HTML page.
        files: paths of files to keep with the run, each with the name that it has there.
        alert: None where nothing is alarming.
    """

    name: str
    job_type: JobType
    group: str = ""
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    charts: tuple[str, ...] = ()
    summary: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TrackedTable] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    alert: Alert | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a run at one sink.

    Attributes:
        place: its address, or the folder where it lies; "" where it is nowhere.
        next_command: what sends it after all; "" where nothing has to be sent, or can be.
        reason: why it was not sent; "" where it was.
        sink: the tracker's name.
        state: offline: on this machine, whole; ``next_command`` sends it.
    """

    sink: str
    state: SentState
    place: str = ""
    next_command: str = ""
    reason: str = ""
