"""Rows of a history file as the core's records, and back; each with a seal of all its values.

sqlite3 notices pages that no longer fit together, not a digit that changed within one.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import zlib
from collections.abc import Collection, Sequence
from typing import Any

from evalguard.nights.document_scores import HASH_FIELDS
from evalguard.nights.history_report import NightMetric, NightRun
from evalguard.store.atomic_files import DamagedBlockError

RUN_COLUMNS = tuple(f.name for f in dataclasses.fields(NightRun))
METRIC_FIELDS = tuple(f.name for f in dataclasses.fields(NightMetric))
VECTOR_COLUMNS = ("doc_ids", "prints", "base_scores", "candidate_scores", "weights")
# Added since; the others stand where the first version has them.
_ADDED_LATER = ("accepted", "margin", "margin_text")
# In the order in which the tables have them.
METRIC_COLUMNS = (
    "run",
    "place",
    *(name for name in METRIC_FIELDS if name not in _ADDED_LATER),
    "aggregation",
    *VECTOR_COLUMNS,
    "accepted",
    *HASH_FIELDS,
    "asked",
    "margin",
    "margin_text",
)
_METRIC_BOOLS = ("higher_is_better", "significant", "certain", "bit_identical", "gated")


def select_columns(table: str, names: Sequence[str]) -> str:
    """Columns of a table and its seal, for a SELECT."""
    return ", ".join(f"{table}.{name}" for name in (*names, "seal"))


def seal_of(values: Sequence[Any]) -> int:
    """CRC-32 of a row's values, as sqlite3 gives them back."""
    return zlib.crc32(repr(tuple(values)).encode("utf-8", "surrogatepass"))


def run_values(run: NightRun) -> list[Any]:
    """The values of ``RUN_COLUMNS`` but for the number."""
    return [_stored_value(getattr(run, name)) for name in RUN_COLUMNS[1:]]


def metric_values(metric: NightMetric) -> dict[str, Any]:
    """The values of a metric's fields."""
    return {name: _stored_value(getattr(metric, name)) for name in METRIC_FIELDS}


def run_of(values: Sequence[Any]) -> NightRun:
    """The run of values in the order of ``RUN_COLUMNS``, and their seal.

    Raises:
        DamagedBlockError: they are not what was written.
    """
    fields = _check_seal(RUN_COLUMNS, values)
    fields["passed"] = bool(fields["passed"])
    return NightRun(**fields)


def metric_of(values: Sequence[Any]) -> NightMetric:
    """The metric of values in the order of ``METRIC_COLUMNS``, and their seal.

    Raises:
        DamagedBlockError: they are not what was written.
    """
    fields = _check_seal(METRIC_COLUMNS, values)
    for name in METRIC_COLUMNS:
        if name not in METRIC_FIELDS:
            del fields[name]
    for name in _METRIC_BOOLS:
        fields[name] = bool(fields[name])
    return NightMetric(**fields)


def seal_all(
    connection: sqlite3.Connection, table: str, key: Sequence[str], added: Collection[str] = ()
) -> None:
    """Seal every row of a table anew, whatever its columns are; a damaged row stays damaged.

    Args:
        key: columns that tell its rows apart.
        added: columns that its seal has not covered so far; () for rows without any seal.
    """
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    names = [str(column[1]) for column in found if column[1] != "seal"]
    where = " AND ".join(f"{name} = ?" for name in key)
    for *row, seal in connection.execute(
        f"SELECT {', '.join(names)}, seal FROM {table}"
    ).fetchall():
        values = dict(zip(names, row, strict=True))
        before = [value for name, value in values.items() if name not in added]
        sound = not added or seal_of(before) == seal
        connection.execute(
            f"UPDATE {table} SET seal = ? WHERE {where}",
            (seal_of(row) if sound else None, *(values[name] for name in key)),
        )


def _check_seal(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    *row, seal = values
    if seal_of(row) != seal:
        raise DamagedBlockError("it is not what was written")
    return dict(zip(names, row, strict=True))


def _stored_value(value: Any) -> Any:
    """As sqlite3 gives it back: text that UTF-8 can hold, truth values as 0 and 1, no NaN."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return int(value) if isinstance(value, bool) else value
