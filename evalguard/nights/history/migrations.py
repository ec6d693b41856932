"""The tables of a history file, and the steps from every earlier version to this one.

environments   packages and machines of runs, each kept once
runs           one comparison of a pair of models
metrics        one metric of a run; its documents' scores are in vectors
vectors        packed per-document numbers, each kept once whichever night it comes from
texts          hashes of documents, likewise
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from evalguard.nights.history.night_rows import seal_all

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
