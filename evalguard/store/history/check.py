"""Reading all of a history file, to see whether it is what was written."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.history import MetricKey, NightMetric, NightRun
from evalguard.core.reports.history_report import HistoryCheck, HistoryExport
from evalguard.store.files import DamagedBlockError, HalfFile, disk_error, make_folder
from evalguard.store.history.database import connect, transaction, translate_errors
from evalguard.store.history.history_file import HistoryFile
from evalguard.store.history.packing import VectorReader, read_texts
from evalguard.store.history.schema import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    metric_of,
    run_of,
    select_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa


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


# A history as parquet files, for other programs.


_HINT = "name another folder"
# A metric's base and candidate are numbers.
_EXPORTED_NAMES = {"number": "run", "base": "base_model", "candidate": "candidate_model"}
_RUN_FIELDS = {_EXPORTED_NAMES.get(f.name, f.name): f for f in dataclasses.fields(NightRun)}
_METRIC_FIELDS = {f.name: f for f in dataclasses.fields(NightMetric)}


def export_history(path: Path, folder: Path, *, documents: bool = True) -> HistoryExport:
    """Write nights.parquet, and documents.parquet, each whole or not at all.

    nights.parquet has a row per metric and run; documents.parquet one per document of each, in
    row groups of one run and metric.

    Raises:
        UsageError: there is no history, or it is damaged.
        StoreError: the folder cannot be written to.
    """
    written: dict[str, int] = {}
    with HistoryFile(path) as history:
        try:
            make_folder(folder)
            nights = _night_table(history)
            written["nights.parquet"] = _write_tables(folder / "nights.parquet", iter([nights]))
            if documents:
                written["documents.parquet"] = _write_tables(
                    folder / "documents.parquet", _document_tables(history)
                )
        except OSError as error:
            raise disk_error("write the history to", folder, error, hint=_HINT) from error
    return HistoryExport(file=str(path), written={str(folder / n): r for n, r in written.items()})


def _write_tables(path: Path, tables: Iterator[pa.Table]) -> int:
    import pyarrow.parquet as pq

    rows = 0
    half = HalfFile(path)
    writer: Any = None
    try:
        file = half.open()
        for table in tables:
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
        half.commit()
    except BaseException:
        half.discard()
        raise
    return rows


def _night_table(history: HistoryFile) -> pa.Table:
    import pyarrow as pa

    rows = [(run, metric) for run in history.runs() for metric in history.metrics(run.number)]
    columns: dict[str, list[Any]] = {}
    for name, field in _RUN_FIELDS.items():
        columns[name] = [getattr(run, field.name) for run, _ in rows]
    for name in _METRIC_FIELDS:
        columns[name] = [getattr(metric, name) for _, metric in rows]
    columns["sigma_stderr"] = [metric.stderr for _, metric in rows]
    fields = [pa.field(name, _arrow_type(name)) for name in columns]
    return pa.table(columns, schema=pa.schema(fields))


def _document_tables(history: HistoryFile) -> Iterator[pa.Table]:
    yield _document_table(history, 0, ("", "", ""))
    for run in history.runs():
        for metric in history.metrics(run.number):
            table = _document_table(history, run.number, metric.key)
            if table.num_rows:
                yield table


def _document_table(history: HistoryFile, run: int, key: MetricKey) -> pa.Table:
    import pyarrow as pa

    found = history.documents([run], key).get(run)
    n = 0 if found is None else found.n
    empty = np.zeros(0)
    names = ("task", "filter", "metric")
    columns: dict[str, Any] = {"run": np.full(n, run, np.int64)}
    for name, value in zip(names, key, strict=True):
        columns[name] = pa.array([value] * n, pa.string())
    columns["doc_id"] = np.zeros(0, np.int64) if found is None else found.doc_ids
    columns["print"] = np.zeros(0, np.uint64) if found is None else found.prints
    columns["base"] = empty if found is None else found.base
    columns["candidate"] = empty if found is None else found.candidate
    weights = None if found is None else found.weights
    columns["weight"] = pa.array([None] * n if weights is None else weights, pa.float64())
    return pa.table(columns)


def _arrow_type(name: str) -> pa.DataType:
    """The type of a column, whatever is in it: a history without nights has the same ones."""
    import pyarrow as pa

    field = _RUN_FIELDS.get(name) or _METRIC_FIELDS.get(name)
    written = "float | None" if field is None else str(field.type)
    if "float" in written:
        return pa.float64()
    if "int" in written:
        return pa.int64()
    return pa.bool_() if written == "bool" else pa.string()
