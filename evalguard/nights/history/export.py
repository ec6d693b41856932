"""A history as parquet files, for other programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.nights.history.history_file import HistoryFile
from evalguard.nights.history_report import HistoryExport, MetricKey, NightMetric, NightRun
from evalguard.store.atomic_files import HalfFile, disk_error, make_folder

if TYPE_CHECKING:
    import pyarrow as pa

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
            history.note_damage()
            problems = tuple(history.problems)
        except OSError as error:
            raise disk_error("write the history to", folder, error, hint=_HINT) from error
    return HistoryExport(
        file=str(path),
        written={str(folder / name): rows for name, rows in written.items()},
        problems=problems,
    )


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
    columns["unit"] = [metric.unit for _, metric in rows]
    columns["drift_in_unit"] = [metric.drift for _, metric in rows]
    columns["drift_in_unit_stderr"] = [metric.drift_stderr for _, metric in rows]
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

    documents = history.documents([run], key).get(run)
    n = 0 if documents is None else documents.n
    empty = np.zeros(0)
    names = ("task", "filter", "metric")
    columns: dict[str, Any] = {"run": np.full(n, run, np.int64)}
    for name, value in zip(names, key, strict=True):
        columns[name] = pa.array([value] * n, pa.string())
    columns["doc_id"] = np.zeros(0, np.int64) if documents is None else documents.doc_ids
    columns["print"] = np.zeros(0, np.uint64) if documents is None else documents.prints
    columns["base"] = empty if documents is None else documents.base
    columns["candidate"] = empty if documents is None else documents.candidate
    weights = None if documents is None else documents.weights
    columns["weight"] = pa.array([None] * n if weights is None else weights, pa.float64())
    return pa.table(columns)


def _arrow_type(name: str) -> pa.DataType:
    """The type of a column, whatever is in it: a history without nights has the same ones."""
    import pyarrow as pa

    field = _RUN_FIELDS.get(name) or _METRIC_FIELDS.get(name)
    written = str(field.type) if field is not None else "str" if name == "unit" else "float"
    if "float" in written:
        return pa.float64()
    if "int" in written:
        return pa.int64()
    return pa.bool_() if written == "bool" else pa.string()
