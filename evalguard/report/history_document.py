"""The JSON documents of ``evalguard history`` (schema ``evalguard.history/1``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from evalguard.history.level import ChangePoint, Level
from evalguard.history.night import MetricKey, Night, NightMetric, NightRun
from evalguard.history.report import (
    SCHEMA,
    FlipReport,
    Found,
    HistoryAddition,
    HistoryCheck,
    HistoryListing,
    HistoryPruning,
    MetricFlips,
    Trend,
    TrendReport,
)


def history_document(found: Found) -> dict[str, Any]:
    """Return the document; numbers that are infinite are null, like those that do not exist."""
    if isinstance(found, HistoryListing):
        content = _listing(found)
    elif isinstance(found, TrendReport):
        content = _trends(found)
    elif isinstance(found, FlipReport):
        content = _flips(found)
    elif isinstance(found, HistoryCheck):
        content = {"check": {"whole": not found.problems, **asdict(found)}}
    elif isinstance(found, HistoryPruning):
        removed = [_run(run) for run in found.removed]
        content = {"prune": {**asdict(found), "removed": removed}}
    elif isinstance(found, HistoryAddition):
        content = {"add": {**asdict(found), "run": _run(found.run)}}
    else:
        content = {"export": asdict(found)}
    return {"schema": SCHEMA, **cast("dict[str, Any]", _finite(content))}


def _listing(listing: HistoryListing) -> dict[str, Any]:
    runs = [
        {**_run(kept.run), "metrics": [_metric(metric) for metric in kept.metrics]}
        for kept in listing.runs
    ]
    return {
        "file": listing.file,
        "total": listing.total,
        "runs": runs,
        "problems": listing.problems,
    }


def _trends(report: TrendReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "base": report.base,
        "candidate": report.candidate,
        "alpha": report.alpha,
        "looks": report.looks,
        "trends": [_trend(trend) for trend in report.trends],
        "problems": report.problems,
    }


def _trend(trend: Trend) -> dict[str, Any]:
    scan, used = trend.scan, set(trend.used)
    nights = [trend.nights[place] for place in trend.used]
    return {
        **_key(trend.key),
        "alpha": scan.alpha,
        "shortest": scan.shortest,
        "smallest_step": scan.smallest_step,
        "seed": scan.seed,
        "nights": [
            {"run": night.run.number, "created": night.run.created, "used": place in used}
            | {name: value for name, value in _metric(night.metric).items() if name not in _KEYS}
            for place, night in enumerate(trend.nights)
        ],
        "levels": [_level(level, nights) for level in scan.levels],
        "change_points": [
            {**_change_point(point, nights), "changes": [asdict(change) for change in changes]}
            for point, changes in zip(scan.points, trend.changes, strict=True)
        ],
    }


def _change_point(point: ChangePoint, nights: list[Night]) -> dict[str, Any]:
    return {
        "run": nights[point.position].run.number,
        "created": nights[point.position].run.created,
        "earliest_run": nights[point.earliest].run.number,
        "latest_run": nights[point.latest].run.number,
        "before": point.before.mean,
        "after": point.after.mean,
        "step": point.step,
        "step_stderr": point.stderr,
        "p_value": point.p_value,
        "level": point.level,
    }


def _level(level: Level, nights: list[Night]) -> dict[str, Any]:
    return {
        "first_run": nights[level.start].run.number,
        "last_run": nights[level.stop - 1].run.number,
        "nights": level.stop - level.start,
        "sigma": level.mean,
        "stderr": level.stderr,
    }


def _flips(report: FlipReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "first": _run(report.first),
        "second": _run(report.second),
        "metrics": [_metric_flips(metric) for metric in report.metrics],
        "problems": report.problems,
    }


def _metric_flips(found: MetricFlips) -> dict[str, Any]:
    broken = None if found.broken is None else {"total": found.broken.total, **asdict(found.broken)}
    changed = None if found.flips is None else asdict(found.flips)
    return {**_key(found.key), "reason": found.reason, "flips": changed, "broken": broken}


def _run(run: NightRun) -> dict[str, Any]:
    return {"run" if name == "number" else name: value for name, value in asdict(run).items()}


_KEYS = ("task", "filter", "metric")


def _metric(metric: NightMetric) -> dict[str, Any]:
    return {**asdict(metric), "sigma_stderr": metric.stderr}


def _key(key: MetricKey) -> dict[str, str]:
    return dict(zip(_KEYS, key, strict=True))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
