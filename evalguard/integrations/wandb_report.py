"""The report of a night on W&B: what regressed, trends, links to the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from evalguard.core.drift_unit import DriftUnit
from evalguard.core.markdown_text import inline
from evalguard.core.reports.tracked_night import NightTrend, NightVerdict, TrackedNight, TrendPoint
from evalguard.core.reports.tracked_run import Sent
from evalguard.installation import extra_command

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as reports
from evalguard.integrations.wandb_sink import WANDB_PROJECT

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
    told = [f"{number} {state}" for state, number in counts if number]
    pairs = f"{len(states)} pair{'' if len(states) == 1 else 's'}"
    return f"{pairs}: {', '.join(told) if told else 'all passed'}"


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
    for verdict in sorted(verdicts, key=lambda one: _GRAVEST_FIRST.index(one.state)):
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
