"""Tables of a tracked run: metrics, probes and culprits of the bisection."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from evalguard.bisect_report import SIGMA, BisectReport
from evalguard.compare_report import CompareReport
from evalguard.pipeline.tracking.moved import moved_documents
from evalguard.settings import Value
from evalguard.tracked_run import TrackedTable

_METRIC = (
    "task", "metric", "filter", "documents", "base", "candidate", "sigma", "sigma_low",
    "sigma_high", "p_value", "outcome",
)  # fmt: skip
_PROBE = (
    "search", "probe", "at candidate value", "documents", "documents so far", "sigma", "error",
    "outcome", "reason", "cost", "drift", "drift error", "unit",
)  # fmt: skip
_CULPRIT = (
    "setting", "reference", "candidate", "target", "task", "metric", "sigma_alone",
    "sigma_in_context", "shapley_sigma", "role", "alone", "in_context",
    "shapley", "unit",
)  # fmt: skip


def tables(report: CompareReport) -> dict[str, TrackedTable]:
    """Return the tables by name; none without rows."""
    found = {"metrics": _metrics(report), "moved_documents": moved_documents(report)}
    if report.bisect is not None:
        found["bisect/probes"] = _probes(report.bisect)
        found["bisect/culprits"] = _culprits(report.bisect)
    return {name: table for name, table in found.items() if table.rows}


def _metrics(report: CompareReport) -> TrackedTable:
    rows = []
    for one in report.comparisons:
        low, high = one.sigma_interval or (None, None)
        values = (one.base, one.candidate, one.sigma, low, high, one.p_value)
        cells = map(finite, values)
        rows.append((one.task, one.metric, one.filter, one.n_used, *cells, one.outcome))
    return TrackedTable(columns=_METRIC, rows=tuple(rows))


def _probes(bisect: BisectReport) -> TrackedTable:
    return TrackedTable(columns=_PROBE, rows=tuple(_probe_rows(bisect)))


def _probe_rows(bisect: BisectReport) -> Iterator[tuple[Any, ...]]:
    for search in bisect.searches:
        name = f"{search.task} {search.metric}"
        for number, probe in enumerate(search.measured, 1):
            yield (
                name,
                number,
                ", ".join(probe.settings) or "none",
                probe.documents,
                probe.documents_so_far,
                *_in_sigma(search.unit, probe.drift_sigma, probe.error_sigma),
                probe.outcome,
                probe.reason,
                probe.cost,
                finite(probe.drift_sigma),
                finite(probe.error_sigma),
                search.unit,
            )


def _culprits(bisect: BisectReport) -> TrackedTable:
    rows = [
        (
            one.setting,
            _text(one.reference),
            _text(one.candidate),
            one.target,
            one.task,
            one.metric,
            *_in_sigma(one.unit, one.sigma_alone, one.sigma_in_context, one.shapley_sigma),
            one.role,
            finite(one.sigma_alone),
            finite(one.sigma_in_context),
            finite(one.shapley_sigma),
            one.unit,
        )
        for one in bisect.culprits
    ]
    return TrackedTable(columns=_CULPRIT, rows=tuple(rows))


def _in_sigma(unit: str, *drifts: float | None) -> tuple[float | None, ...]:
    """Drifts for columns that are called sigma: None in any other unit."""
    return tuple(finite(drift) if unit == SIGMA else None for drift in drifts)


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; None for any other."""
    return value if value is not None and math.isfinite(value) else None


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
