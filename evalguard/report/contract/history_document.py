"""The JSON documents of ``evalguard history`` (schema ``evalguard.history/1``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from evalguard.core.history_night import Night, NightMetric, NightRun
from evalguard.core.reports.history_report import (
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
from evalguard.report.contract.forms import key_fields
from evalguard.report.contract.non_finite import replace_non_finite
from evalguard.stats.series.levels import ChangePoint, Level


def history_document(found: Found) -> dict[str, Any]:
    """Return the document; numbers that are infinite are null, like those that do not exist."""
    if isinstance(found, HistoryListing):
        content = _listing_document(found)
    elif isinstance(found, TrendReport):
        content = _trends_document(found)
    elif isinstance(found, FlipReport):
        content = _flips_document(found)
    elif isinstance(found, HistoryCheck):
        content = {"check": {"whole": not found.problems, **asdict(found)}}
    elif isinstance(found, HistoryPruning):
        removed = [_run_document(run) for run in found.removed]
        content = {"prune": {**asdict(found), "removed": removed}}
    elif isinstance(found, HistoryAddition):
        content = {"add": {**asdict(found), "run": _run_document(found.run)}}
    else:
        content = {"export": asdict(found)}
    return {"schema": SCHEMA, **replace_non_finite(content, "", {})}


def _listing_document(listing: HistoryListing) -> dict[str, Any]:
    runs = [
        {
            **_run_document(kept.run),
            "metrics": [_metric_document(metric) for metric in kept.metrics],
        }
        for kept in listing.runs
    ]
    return {
        "file": listing.file,
        "total": listing.total,
        "runs": runs,
        "problems": listing.problems,
    }


def _trends_document(report: TrendReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "base": report.base,
        "candidate": report.candidate,
        "alpha": report.alpha,
        "looks": report.looks,
        "trends": [_trend_document(trend) for trend in report.trends],
        "problems": report.problems,
    }


def _trend_document(trend: Trend) -> dict[str, Any]:
    scan, used, key = trend.scan, set(trend.used), key_fields(trend.key)
    nights = [trend.nights[place] for place in trend.used]
    return {
        **key,
        "alpha": scan.alpha,
        "shortest": scan.shortest,
        "smallest_step": scan.smallest_step,
        "seed": scan.seed,
        "correlation": scan.correlation,
        "nights": [
            {"run": night.run.number, "created": night.run.created, "used": place in used}
            | {
                name: value
                for name, value in _metric_document(night.metric).items()
                if name not in key
            }
            for place, night in enumerate(trend.nights)
        ],
        "levels": [_level_document(level, nights) for level in scan.levels],
        "change_points": [
            {
                **_change_point_document(point, nights),
                "changes": [asdict(change) for change in changes],
            }
            for point, changes in zip(scan.points, trend.changes, strict=True)
        ],
    }


def _change_point_document(point: ChangePoint, nights: list[Night]) -> dict[str, Any]:
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


def _level_document(level: Level, nights: list[Night]) -> dict[str, Any]:
    return {
        "first_run": nights[level.start].run.number,
        "last_run": nights[level.stop - 1].run.number,
        "nights": level.stop - level.start,
        "sigma": level.mean,
        "stderr": level.stderr,
    }


def _flips_document(report: FlipReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "first": _run_document(report.first),
        "second": _run_document(report.second),
        "metrics": [_metric_flips_document(metric) for metric in report.metrics],
        "problems": report.problems,
    }


def _metric_flips_document(found: MetricFlips) -> dict[str, Any]:
    broken = None if found.broken is None else {"total": found.broken.total, **asdict(found.broken)}
    changed = None if found.flips is None else asdict(found.flips)
    return {**key_fields(found.key), "reason": found.reason, "flips": changed, "broken": broken}


def _run_document(run: NightRun) -> dict[str, Any]:
    return {"run" if name == "number" else name: value for name, value in asdict(run).items()}


def _metric_document(metric: NightMetric) -> dict[str, Any]:
    return {**asdict(metric), "sigma_stderr": metric.stderr}
