"""Reading all of a history file, to see whether it is what was written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from evalguard.nights.history.database import connect, transaction
from evalguard.nights.history.migrations import SCHEMA_VERSION
from evalguard.nights.history.night_rows import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    metric_of,
    run_of,
    select_columns,
)
from evalguard.nights.history.sqlite_errors import translate_errors
from evalguard.nights.history.texts import read_texts
from evalguard.nights.history.vectors import VectorReader
from evalguard.nights.history_report import HistoryCheck
from evalguard.store.atomic_files import DamagedBlockError

_MOST_SHOWN = 100


def check_history(path: Path) -> HistoryCheck:
    """Read every page, row and vector.

    Raises:
        UsageError: it cannot be opened as a history at all.
        StoreError: the disk refuses.
    """
    connection = connect(path, create=False)
    try:
        with translate_errors(path, "read"), transaction(connection, writes=False):
            problems = list(_check_pages(connection))
            problems += _check_rows(connection)
            problems += _check_vectors(connection)
            problems += _check_texts(connection)
            counts = [_count_rows(connection, table) for table in ("runs", "metrics", "vectors")]
    finally:
        connection.close()
    return HistoryCheck(
        file=str(path),
        version=SCHEMA_VERSION,
        runs=counts[0],
        metrics=counts[1],
        vectors=counts[2],
        size=path.stat().st_size,
        problems=tuple(problems),
    )


def _check_pages(connection: sqlite3.Connection) -> Iterator[str]:
    """What sqlite3 itself finds: pages, indexes, rows without what they refer to."""
    try:
        for (line,) in connection.execute(f"PRAGMA integrity_check({_MOST_SHOWN})"):
            if line != "ok":
                yield str(line)
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            yield f"{table}, row {row}: what it refers to in {parent} is gone"
    except sqlite3.DatabaseError as error:
        yield str(error)


def _check_rows(connection: sqlite3.Connection) -> Iterator[str]:
    """Rows that are not what was written."""
    tables = (("runs", RUN_COLUMNS, _run_problem), ("metrics", METRIC_COLUMNS, _metric_problem))
    for table, names, problem_of in tables:
        try:
            for row in connection.execute(f"SELECT {select_columns(table, names)} FROM {table}"):
                yield from problem_of(row)
        except sqlite3.DatabaseError as error:
            yield f"not all of {table} can be read: {error}"


def _run_problem(row: tuple[Any, ...]) -> Iterator[str]:
    try:
        run = run_of(row)
        datetime.fromisoformat(run.created)
    except DamagedBlockError as error:
        yield f"run {row[0]}: {error}"
    except (ValueError, TypeError):
        yield f"run {row[0]}: {row[1]!r} is not a time"


def _metric_problem(row: tuple[Any, ...]) -> Iterator[str]:
    try:
        metric_of(row)
    except DamagedBlockError as error:
        yield f"run {row[0]}, {' '.join(map(str, row[2:5]))}: {error}"


def _check_vectors(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        ids = [number for (number,) in connection.execute("SELECT id FROM vectors")]
    except sqlite3.DatabaseError as error:
        yield f"not all vectors can be read: {error}"
        return
    references = connection.execute("SELECT DISTINCT reference FROM vectors").fetchall()
    kept = {number for (number,) in references}
    reader = VectorReader(connection, {})
    for number in ids:
        try:
            reader.get(number)
        except (DamagedBlockError, sqlite3.DatabaseError) as error:
            yield f"vector {number}: {error}"
        if number not in kept:  # only references are asked for again
            reader.known.pop(number, None)


def _check_texts(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        for (number,) in connection.execute("SELECT id FROM texts").fetchall():
            try:
                read_texts(connection, number)
            except DamagedBlockError as error:
                yield f"texts: {error}"
    except sqlite3.DatabaseError as error:
        yield f"not all texts can be read: {error}"


def _count_rows(connection: sqlite3.Connection, table: str) -> int:
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    except sqlite3.DatabaseError:
        return 0
