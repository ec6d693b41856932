"""Rows of a history file as the core's records, and back."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import Any

from evalguard.history import NightMetric, NightRun

RUN_COLUMNS = tuple(f.name for f in dataclasses.fields(NightRun))
METRIC_COLUMNS = tuple(f.name for f in dataclasses.fields(NightMetric))
VECTOR_COLUMNS = ("doc_ids", "prints", "base_scores", "candidate_scores", "weights")
_METRIC_BOOLS = ("higher_is_better", "significant", "certain", "bit_identical", "gated")

Row = sqlite3.Row | tuple[Any, ...]


def run_values(run: NightRun) -> list[Any]:
    """The values of ``RUN_COLUMNS`` but for the number."""
    return [_kept(getattr(run, name)) for name in RUN_COLUMNS[1:]]


def metric_values(metric: NightMetric) -> list[Any]:
    """The values of ``METRIC_COLUMNS``."""
    return [_kept(getattr(metric, name)) for name in METRIC_COLUMNS]


def run_of(values: Row) -> NightRun:
    """The run of values in the order of ``RUN_COLUMNS``."""
    fields = dict(zip(RUN_COLUMNS, values, strict=True))
    fields["passed"] = bool(fields["passed"])
    return NightRun(**fields)


def metric_of(values: Row) -> NightMetric:
    """The metric of values in the order of ``METRIC_COLUMNS``."""
    fields = dict(zip(METRIC_COLUMNS, values, strict=True))
    for name in _METRIC_BOOLS:
        fields[name] = bool(fields[name])
    return NightMetric(**fields)


def _kept(value: Any) -> Any:
    """Text that UTF-8 can hold, numbers as sqlite3 takes them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return int(value) if isinstance(value, bool) else value
