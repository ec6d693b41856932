"""A bisection for experiment trackers: its numbers, and tables of probes and culprits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from evalguard.bisect.bisect_report import BisectReport
from evalguard.core.amounts import finite_or_none
from evalguard.core.settings import Value
from evalguard.core.tracked_run import TrackedTable
from evalguard.core.verdict import SIGMA

_PROBE_COLUMNS = (
    "search", "probe", "at candidate value", "documents", "documents so far", "sigma", "error",
    "outcome", "reason", "cost", "drift", "drift error", "unit",
)  # fmt: skip
_CULPRIT_COLUMNS = (
    "setting", "reference", "candidate", "target", "task", "metric", "sigma_alone",
    "sigma_in_context", "shapley_sigma", "role", "alone", "in_context",
    "shapley", "unit",
)  # fmt: skip


def bisection_numbers(found: BisectReport) -> dict[str, float | int | None]:
    """Return what trends over runs."""
    unexplained = (
        {"bisect/unexplained_sigma": found.unexplained_sigma} if found.unit == SIGMA else {}
    )
    return {"bisect/evaluations": found.evaluations, "bisect/probes": found.probes, **unexplained}


def bisection_tables(found: BisectReport) -> dict[str, TrackedTable]:
    """Return the tables by name."""
    return {"bisect/probes": _probes_table(found), "bisect/culprits": _culprits_table(found)}


def _probes_table(bisect: BisectReport) -> TrackedTable:
    return TrackedTable(columns=_PROBE_COLUMNS, rows=tuple(_probe_rows(bisect)))


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
                *_sigma_columns(search.unit, probe.drift_sigma, probe.error_sigma),
                probe.outcome,
                probe.reason,
                probe.cost,
                probe.drift_sigma,
                probe.error_sigma,
                search.unit,
            )


def _culprits_table(bisect: BisectReport) -> TrackedTable:
    rows = [
        (
            culprit.setting,
            _setting_text(culprit.reference),
            _setting_text(culprit.candidate),
            culprit.target,
            culprit.task,
            culprit.metric,
            *_sigma_columns(
                culprit.unit, culprit.sigma_alone, culprit.sigma_in_context, culprit.shapley_sigma
            ),
            culprit.role,
            finite_or_none(culprit.sigma_alone),
            finite_or_none(culprit.sigma_in_context),
            finite_or_none(culprit.shapley_sigma),
            culprit.unit,
        )
        for culprit in bisect.culprits
    ]
    return TrackedTable(columns=_CULPRIT_COLUMNS, rows=tuple(rows))


def _sigma_columns(unit: str, *drifts: float | None) -> tuple[float | None, ...]:
    """Drifts for columns that are called sigma: None in any other unit."""
    return tuple(finite_or_none(drift) if unit == SIGMA else None for drift in drifts)


def _setting_text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
