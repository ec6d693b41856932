"""The JSON documents of ``evalguard history`` (schema ``evalguard.history/1``)."""

from __future__ import annotations

from typing import Any

from evalguard.core.drift_unit import DriftUnit
from evalguard.core.history_night import Night
from evalguard.core.reports.history_report import (
    SCHEMA,
    Found,
    HistoryAddition,
    HistoryCheck,
    HistoryExport,
    HistoryPruning,
    Trend,
    TrendReport,
)
from evalguard.report.contract.forms import key_fields, write_record
from evalguard.report.contract.non_finite import replace_non_finite
from evalguard.stats.series.levels import ChangePoint, Level

_IN_UNIT = ("drift_in_unit", "drift_in_unit_stderr")


def history_document(found: Found) -> dict[str, Any]:
    """Return the document; numbers that are infinite are null, like those that do not exist."""
    content = write_record(found) if not isinstance(found, TrendReport) else _trends_document(found)
    if isinstance(found, HistoryCheck):
        content = {"check": {"whole": not found.problems, **content}}
    elif isinstance(found, HistoryPruning):
        content = {"prune": content}
    elif isinstance(found, HistoryAddition):
        content = {"add": content}
    elif isinstance(found, HistoryExport):
        content = {"export": content}
    return {"schema": SCHEMA, **replace_non_finite(content, "", {})}


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
            | {name: value for name, value in write_record(night.metric).items() if name not in key}
            | dict(zip(_IN_UNIT, night.metric.drift_in(trend.unit), strict=True))
            | {"unit": trend.unit}
            for place, night in enumerate(trend.nights)
        ],
        "unit": trend.unit,
        "levels": [_level_document(level, nights, trend.unit) for level in scan.levels],
        "change_points": [
            {
                **_change_point_document(point, nights),
                "changes": [write_record(change) for change in changes],
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


def _level_document(level: Level, nights: list[Night], unit: DriftUnit) -> dict[str, Any]:
    return {
        "first_run": nights[level.start].run.number,
        "last_run": nights[level.stop - 1].run.number,
        "nights": level.stop - level.start,
        "sigma": level.mean if unit == "sigma" else None,
        "mean": level.mean,
        "stderr": level.stderr,
    }
