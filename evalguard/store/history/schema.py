"""The tables of a history file, and the steps from every earlier version to this one.

environments   packages and machines of runs, each kept once
runs           one comparison of a pair of models
metrics        one metric of a run; its documents' scores are in vectors
vectors        packed per-document numbers, each kept once whichever night it comes from
texts          hashes of documents, likewise
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from evalguard.core.document_scores import HASH_FIELDS
from evalguard.core.history import NightMetric, NightRun
from evalguard.store.files import DamagedBlockError

APPLICATION_ID = 0x45474849
"""What sqlite3 keeps in the head of the file: "EGHI"."""

_FIRST_TABLES = """
CREATE TABLE environments (
  digest TEXT PRIMARY KEY,
  content TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  created TEXT NOT NULL,
  base TEXT NOT NULL,
  base_digest TEXT NOT NULL,
  candidate TEXT NOT NULL,
  candidate_digest TEXT NOT NULL,
  exit_code INTEGER NOT NULL,
  passed INTEGER NOT NULL,
  state TEXT NOT NULL,
  margin REAL NOT NULL,
  fail_on TEXT NOT NULL,
  version TEXT NOT NULL,
  environment TEXT NOT NULL REFERENCES environments,
  folder TEXT NOT NULL
);
CREATE INDEX runs_of_a_pair ON runs (base, candidate, created);
CREATE TABLE vectors (
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  reference INTEGER REFERENCES vectors,
  packed BLOB NOT NULL
);
CREATE TABLE metrics (
  run INTEGER NOT NULL REFERENCES runs,
  place INTEGER NOT NULL,
  task TEXT NOT NULL,
  filter TEXT NOT NULL,
  metric TEXT NOT NULL,
  higher_is_better INTEGER NOT NULL,
  n INTEGER NOT NULL,
  n_used INTEGER NOT NULL,
  base REAL,
  base_stderr REAL,
  candidate REAL,
  candidate_stderr REAL,
  sigma REAL,
  sigma_low REAL,
  sigma_high REAL,
  paired_stderr REAL,
  p_value REAL,
  method TEXT NOT NULL,
  outcome TEXT NOT NULL,
  significant INTEGER NOT NULL,
  certain INTEGER NOT NULL,
  bit_identical INTEGER NOT NULL,
  gated INTEGER NOT NULL,
  lost INTEGER,
  won INTEGER,
  aggregation TEXT,
  doc_ids INTEGER REFERENCES vectors,
  prints INTEGER REFERENCES vectors,
  base_scores INTEGER REFERENCES vectors,
  candidate_scores INTEGER REFERENCES vectors,
  weights INTEGER REFERENCES vectors,
  PRIMARY KEY (task, filter, metric, run)
) WITHOUT ROWID;
CREATE INDEX metrics_of_a_run ON metrics (run);
"""


def _create_tables(connection: sqlite3.Connection) -> None:
    _run_script(connection, _FIRST_TABLES)


def _add_seals(connection: sqlite3.Connection) -> None:
    """Version 2: which metrics were accepted by a waiver; a seal in every row."""
    connection.execute("ALTER TABLE metrics ADD COLUMN accepted TEXT NOT NULL DEFAULT ''")
    for table, key in (("runs", ("number",)), ("metrics", ("task", "filter", "metric", "run"))):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN seal INTEGER")
        seal_all(connection, table, key)


_TEXTS = """
CREATE TABLE texts (
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  packed BLOB NOT NULL
)"""
_HASH_COLUMNS = ("doc_hashes", "prompt_hashes", "target_hashes", "asked_hashes", "token_hashes")


def _add_hashes(connection: sqlite3.Connection) -> None:
    """Version 3: full hashes of the documents, and how they were asked."""
    connection.execute(_TEXTS)
    for name in _HASH_COLUMNS:
        connection.execute(f"ALTER TABLE metrics ADD COLUMN {name} INTEGER REFERENCES texts")
    connection.execute("ALTER TABLE metrics ADD COLUMN asked TEXT NOT NULL DEFAULT ''")
    key = ("task", "filter", "metric", "run")
    seal_all(connection, "metrics", key, added=(*_HASH_COLUMNS, "asked"))


def _add_margins(connection: sqlite3.Connection) -> None:
    """Version 4: each metric's own margin."""
    connection.execute("ALTER TABLE metrics ADD COLUMN margin REAL")
    connection.execute("ALTER TABLE metrics ADD COLUMN margin_text TEXT NOT NULL DEFAULT ''")
    key = ("task", "filter", "metric", "run")
    seal_all(connection, "metrics", key, added=("margin", "margin_text"))


# The step from version k to k + 1 is the k-th; version 0 is a file without tables. A step is never
# changed once files were made by it.
STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _create_tables,
    _add_seals,
    _add_hashes,
    _add_margins,
)
SCHEMA_VERSION = len(STEPS)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Take a file from a version to this one, inside a transaction that the caller has begun.

    Raises:
        sqlite3.Error: it cannot be done.
    """
    for step in STEPS[version:]:
        step(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Statements one by one: ``executescript`` would commit the transaction that is open."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


# Rows of a history file as the core's records, and back; each with a seal of all its values.
#
# sqlite3 notices pages that no longer fit together, not a digit that changed within one.


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
