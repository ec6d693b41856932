"""W&B: a comparison as a run, in an open run, and the report of a night."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from evalguard.core.redaction import redacted_text
from evalguard.core.tracked_night import NightTrend, NightVerdict, TrackedNight, TrendPoint
from evalguard.core.tracked_run import Sent, TrackedRun
from evalguard.core.verdict import DriftUnit
from evalguard.installation import extra_command
from evalguard.page.safe_text import break_links, inline
from evalguard.publish.sending_job import TrackingJob

if TYPE_CHECKING:
    import wandb
    import wandb_workspaces.reports.v2 as reports

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
    location = str(folder) if job.offline else run.url or ""
    run.finish(exit_code=0)
    if job.offline:
        shown = _relative_path(folder)
        command = f"wandb sync {shlex.quote(shown)}"
        return Sent(sink="wandb", state="offline", place=shown, next_command=command)
    return Sent(sink="wandb", state="sent", place=location)


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


_LONGEST_TITLE = 128
_LONGEST_CELL = 300
_NIGHTS = 14
# Newest first: what has to be looked at in the morning stands on top.
_GRAVEST_FIRST = ("regressed", "failed", None, "undecided", "passed")


def save_night_report(night: TrackedNight) -> Sent:
    """Save the report in the project of the night's runs.

    Raises:
        Exception: whatever W&B raises.
    """
    try:
        import wandb_workspaces.reports.v2 as reports
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"reports need wandb-workspaces: {extra_command('wandb-report')}"
        ) from error
    import wandb

    settings = wandb.setup().settings
    if settings.mode != "online":
        return Sent(sink="wandb", state="failed", reason=f"W&B is set to {settings.mode} here")
    api = wandb.Api()
    entity = settings.entity or api.default_entity
    project = settings.project or WANDB_PROJECT
    report = reports.Report(
        project=project,
        entity=entity,
        title=f"evalguard {night.name}"[:_LONGEST_TITLE],
        description=summarize_verdicts(night.verdicts),
        blocks=list(_blocks(night, entity, project)),
        width="fluid",
    )
    report.save()
    return Sent(sink="wandb", state="sent", place=report.url)


def summarize_verdicts(verdicts: Sequence[NightVerdict]) -> str:
    """ "2 of 14 pairs regressed, 1 failed"."""
    states = [verdict.state or "failed" for verdict in verdicts]
    counts = [(state, states.count(state)) for state in ("regressed", "failed", "undecided")]
    outcomes = [f"{number} {state}" for state, number in counts if number]
    pairs = f"{len(states)} pair{'' if len(states) == 1 else 's'}"
    return f"{pairs}: {', '.join(outcomes) if outcomes else 'all passed'}"


def _blocks(night: TrackedNight, entity: str, project: str) -> Iterator[Any]:
    import wandb_workspaces.reports.v2 as reports

    yield reports.H1(text="Verdicts")
    yield reports.MarkdownBlock(text=verdict_table(night.verdicts))
    if night.trends:
        yield reports.H1(text="Trends")
        yield reports.P(
            text="Drift in standard errors of the base, or in points where its documents do not "
            "scatter; above 0 is worse; one point a night."
        )
        yield reports.PanelGrid(
            runsets=[_nightly_runs(pair, entity, project) for pair in _pairs(night.trends)],
            panels=[_scatter(name) for name in dict.fromkeys(map(_scalar, night.trends))],
        )
        yield reports.MarkdownBlock(text=trend_table(night.trends))


def _pairs(trends: Sequence[NightTrend]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((trend.base, trend.candidate) for trend in trends))


def _nightly_runs(pair: tuple[str, str], entity: str, project: str) -> reports.Runset:
    import wandb_workspaces.reports.v2 as reports
    from wandb_workspaces import expr

    name = " vs ".join(pair)
    return reports.Runset(
        entity=entity,
        project=project,
        name=name,
        filters=[expr.Metric("JobType") == "nightly", expr.Metric("Name") == name],
    )


def _scatter(scalar: str) -> reports.ScatterPlot:
    """Drift over the time that a run began."""
    import wandb_workspaces.reports.v2 as reports

    return reports.ScatterPlot(
        title=scalar.removesuffix("/sigma").removesuffix("/drift"),
        x="run.CreatedTimestamp",
        y=reports.SummaryMetric(scalar),
    )


def _scalar(trend: NightTrend) -> str:
    """Every run has its drift in units of the metric, too."""
    return f"{trend.task}/{trend.metric}/{'sigma' if trend.unit == 'sigma' else 'drift'}"


def verdict_table(verdicts: Sequence[NightVerdict]) -> str:
    """The night's pairs as a Markdown table, gravest first; their runs are linked."""
    rows = ["| pair | verdict | |", "| --- | --- | --- |"]
    for verdict in sorted(verdicts, key=lambda entry: _GRAVEST_FIRST.index(entry.state)):
        pair = _cell_text(f"{verdict.base} vs {verdict.candidate}")
        linked = f"[{pair}]({_address(verdict.url)})" if verdict.url else pair
        state = f"**{verdict.state or 'no result'}**"
        rows.append(f"| {linked} | {state} | {_cell_text(verdict.sentence)} |")
    return "\n".join(rows)


def trend_table(trends: Sequence[NightTrend]) -> str:
    """The last nights of every metric as a Markdown table, oldest first."""
    rows = [
        "| pair | metric | tonight | nights before |",
        "| --- | --- | --- | --- |",
    ]
    for trend in trends:
        *before, tonight = trend.points[-_NIGHTS:] or (TrendPoint(created="", drift=None),)
        pair = _cell_text(f"{trend.base} vs {trend.candidate}")
        metric = _cell_text(f"{trend.task} {trend.metric}")
        past = ", ".join(_drift(point, trend.unit) for point in before)
        rows.append(f"| {pair} | {metric} | {_with_interval(tonight, trend.unit)} | {past} |")
    return "\n".join(rows)


def _with_interval(point: TrendPoint, unit: DriftUnit) -> str:
    if point.low is None or point.high is None:
        return _drift(point, unit)
    return f"{_drift(point, unit)} ({point.low:+.2f} to {point.high:+.2f})"


def _drift(point: TrendPoint, unit: DriftUnit) -> str:
    if point.drift is None:
        return "-"
    return f"{point.drift:+.2f}" if unit == "sigma" else f"{point.drift:+.1f}{unit}"


def _address(url: str) -> str:
    """An address that ends a link's target nowhere; W&B's server names it."""
    return quote(url, safe=":/?#&=%+,;@~-._")


def _cell_text(text: str) -> str:
    """Text that stays text; W&B reads ``$`` as a formula's, but for an escaped one."""
    return inline(text, _LONGEST_CELL, dollar=r"\$")
