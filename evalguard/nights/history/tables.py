"""The tables of a history file: records and documents as rows, and back.

environments   packages and machines of runs, each kept once
runs           one comparison of a pair of models
metrics        one metric of a run, with the ids of its documents' vectors
vectors        numbers or hashes of documents, one zlib blob each, kept once whichever night they
               come from: documents and a base that stay as they are cost a night nothing

Every row of a run or metric has a checksum of its values: sqlite3 notices pages that no longer fit
together, not a digit that changed within one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.nights.document_scores import HASH_FIELDS, DocumentHashes, DocumentScores
from evalguard.nights.history_report import NightMetric, NightRun
from evalguard.store.atomic_files import DamagedBlockError

SCHEMA_VERSION = 5
_RUN_TABLES = """
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
  folder TEXT NOT NULL,
  checksum INTEGER
);
CREATE INDEX runs_of_a_pair ON runs (base, candidate, created);
"""
_METRIC_TABLES = """
CREATE TABLE vectors (
  id INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  content BLOB NOT NULL
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
  accepted TEXT NOT NULL,
  margin REAL,
  margin_text TEXT NOT NULL,
  aggregation TEXT,
  doc_ids INTEGER REFERENCES vectors,
  prints INTEGER REFERENCES vectors,
  base_scores INTEGER REFERENCES vectors,
  candidate_scores INTEGER REFERENCES vectors,
  weights INTEGER REFERENCES vectors,
  hashes INTEGER REFERENCES vectors,
  asked TEXT NOT NULL,
  checksum INTEGER,
  PRIMARY KEY (task, filter, metric, run)
) WITHOUT ROWID;
CREATE INDEX metrics_of_a_run ON metrics (run);
"""

RUN_COLUMNS = tuple(field.name for field in dataclasses.fields(NightRun))
_METRIC_FIELDS = tuple(field.name for field in dataclasses.fields(NightMetric))
NUMBER_COLUMNS = ("doc_ids", "prints", "base_scores", "candidate_scores", "weights")
VECTOR_COLUMNS = (*NUMBER_COLUMNS, "hashes")
METRIC_COLUMNS = ("run", "place", *_METRIC_FIELDS, "aggregation", *VECTOR_COLUMNS, "asked")
_METRIC_BOOLS = ("higher_is_better", "significant", "certain", "bit_identical", "gated")

Numbers = NDArray[Any]
# Floats are kept in the first of these that gives them back bit for bit.
_FLOATS = (b"B", b"f", b"d")
_TYPES = {b"B": "|u1", b"f": "<f4", b"d": "<f8", b"q": "<i8", b"Q": "<u8"}
# A few bytes may say that they are as many: a gigabyte when it is unpacked, and not all memory.
_LARGEST_VECTOR = 2**30


def create_run_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of runs, inside a transaction that the caller has begun."""
    _create(connection, _RUN_TABLES)


def create_metric_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of metrics and vectors, inside a transaction that the caller has begun."""
    _create(connection, _METRIC_TABLES)


def _create(connection: sqlite3.Connection, tables: str) -> None:
    """Statements one by one: ``executescript`` would commit the transaction that is open."""
    for statement in filter(str.strip, tables.split(";")):
        connection.execute(statement)


def select_columns(table: str, names: Iterable[str]) -> str:
    """Columns of a table and its checksum, for a SELECT."""
    return ", ".join(f"{table}.{name}" for name in (*names, "checksum"))


def checksum(values: Iterable[Any]) -> int:
    """CRC-32 of a row's values, as sqlite3 gives them back."""
    return zlib.crc32(repr(tuple(values)).encode("utf-8", "surrogatepass"))


def insert_run(connection: sqlite3.Connection, run: NightRun) -> int:
    """Add the row of a run; return its number."""
    values = [_stored_value(getattr(run, name)) for name in RUN_COLUMNS[1:]]
    added = connection.execute(
        f"INSERT INTO runs ({', '.join(RUN_COLUMNS[1:])}) VALUES ({', '.join('?' * len(values))})",
        values,
    )
    number = int(added.lastrowid or 0)
    connection.execute(
        "UPDATE runs SET checksum = ? WHERE number = ?", (checksum((number, *values)), number)
    )
    return number


def insert_metric(
    connection: sqlite3.Connection, fields: Mapping[str, Any], *, damaged: bool = False
) -> None:
    """Add the row of a metric.

    Args:
        fields: by column.
        damaged: they are not what was written once, which the row goes on to say.
    """
    values = [_stored_value(fields[name]) for name in METRIC_COLUMNS]
    connection.execute(
        f"INSERT INTO metrics ({', '.join(METRIC_COLUMNS)}, checksum) "
        f"VALUES ({', '.join('?' * len(values))}, ?)",
        (*values, None if damaged else checksum(values)),
    )


def metric_fields(
    connection: sqlite3.Connection,
    run: int,
    place: int,
    metric: NightMetric,
    documents: DocumentScores | None,
) -> dict[str, Any]:
    """The row of a metric by column; its documents' vectors are stored."""
    fields = dict.fromkeys(METRIC_COLUMNS) | {
        name: getattr(metric, name) for name in _METRIC_FIELDS
    }
    fields |= {"run": run, "place": place, "asked": ""}
    if documents is None:
        return fields
    numbers = {
        "doc_ids": documents.doc_ids,
        "prints": documents.prints,
        "base_scores": documents.base,
        "candidate_scores": documents.candidate,
        "weights": documents.weights,
    }
    for name, values in numbers.items():
        if values is not None:
            fields[name] = store_vector(connection, pack_numbers(values))
    fields["aggregation"] = documents.aggregation
    hashes = documents.hashes
    if hashes is not None:
        lists = {name: getattr(hashes, name) for name in HASH_FIELDS}
        fields["hashes"] = store_vector(connection, pack_hashes(lists))
        asked = {"n_total": hashes.n_total, "run": dict(hashes.run)}
        fields["asked"] = json.dumps(asked, sort_keys=True, default=str)
    return fields


def run_of(row: Sequence[Any]) -> NightRun:
    """The run of values in the order of ``RUN_COLUMNS``, and their checksum.

    Raises:
        DamagedBlockError: they are not what was written.
    """
    fields = checked_fields(RUN_COLUMNS, row)
    fields["passed"] = bool(fields["passed"])
    return NightRun(**fields)


def metric_of(row: Sequence[Any]) -> NightMetric:
    """The metric of values in the order of ``METRIC_COLUMNS``, and their checksum.

    Raises:
        DamagedBlockError: they are not what was written.
    """
    fields = checked_fields(METRIC_COLUMNS, row)
    values = {name: fields[name] for name in _METRIC_FIELDS}
    return NightMetric(**values | {name: bool(values[name]) for name in _METRIC_BOOLS})


def documents_of(
    connection: sqlite3.Connection,
    fields: Mapping[str, Any],
    known: dict[int, Numbers],
    *,
    hashes: bool,
) -> DocumentScores:
    """The documents of a metric.

    Args:
        fields: by column, as ``checked_fields`` gives them.
        known: vectors that were read already, by id; those that are read are added.
        hashes: with their full hashes.

    Raises:
        DamagedBlockError: a vector is gone, or not what was written.
    """
    numbers: dict[str, Numbers | None] = {}
    for name in NUMBER_COLUMNS:
        number = fields[name]
        if number is not None and number not in known:
            known[number] = unpack_numbers(read_vector(connection, number))
        numbers[name] = None if number is None else known[number]
    *needed, weights = numbers.values()
    if any(values is None for values in needed):
        raise DamagedBlockError("its documents' numbers are not all there")
    doc_ids, prints, base, candidate = (values for values in needed if values is not None)
    if len({values.shape for values in numbers.values() if values is not None}) > 1:
        raise DamagedBlockError("its documents' numbers are of different lengths")
    return DocumentScores(
        aggregation=fields["aggregation"],
        higher_is_better=bool(fields["higher_is_better"]),
        doc_ids=doc_ids,
        prints=prints,
        base=base,
        candidate=candidate,
        weights=weights,
        hashes=_hashes_of(connection, fields) if hashes else None,
    )


def _hashes_of(connection: sqlite3.Connection, fields: Mapping[str, Any]) -> DocumentHashes | None:
    """None where a night was kept without them, by an earlier evalguard."""
    if fields["hashes"] is None:
        return None
    lists = json.loads(read_vector(connection, fields["hashes"]))
    asked = json.loads(fields["asked"])
    return DocumentHashes(
        **{name: tuple(lists[name]) for name in HASH_FIELDS},
        n_total=int(asked["n_total"]),
        run=asked["run"],
    )


def checked_fields(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """Values of a row by column.

    Args:
        row: their values, and their checksum.

    Raises:
        DamagedBlockError: they are not what was written.
    """
    *values, expected = row
    if checksum(values) != expected:
        raise DamagedBlockError("it is not what was written")
    return dict(zip(names, values, strict=True))


def store_vector(connection: sqlite3.Connection, content: bytes) -> int:
    """Keep a vector, where it is not kept yet; return its id."""
    digest = _digest(content)
    known = connection.execute("SELECT id FROM vectors WHERE digest = ?", (digest,)).fetchone()
    if known is not None:
        return int(known[0])
    added = connection.execute(
        "INSERT INTO vectors (digest, content) VALUES (?, ?)", (digest, zlib.compress(content))
    )
    return int(added.lastrowid or 0)


def read_vector(connection: sqlite3.Connection, number: int) -> bytes:
    """What ``store_vector`` was given.

    Raises:
        DamagedBlockError: it is gone, or not what was written.
    """
    query = "SELECT digest, content FROM vectors WHERE id = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        raise DamagedBlockError(f"vector {number} is gone")
    digest, zipped = row
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(zipped, _LARGEST_VECTOR)
    except (zlib.error, TypeError) as error:
        raise DamagedBlockError("it was changed or cut") from error
    if not unpacker.eof or _digest(content) != digest:
        raise DamagedBlockError("it was changed or cut")
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def pack_numbers(values: Numbers) -> bytes:
    """float64, int64 or uint64 numbers, shape (n,), as bytes behind a letter for their type."""
    if values.dtype != np.float64:
        kind = b"Q" if values.dtype.kind == "u" else b"q"
        return kind + values.astype(_TYPES[kind], copy=False).tobytes()
    with np.errstate(over="ignore", invalid="ignore"):
        for kind in _FLOATS:
            narrow = values.astype(_TYPES[kind])
            if np.array_equal(narrow.astype(np.float64).view(np.uint64), values.view(np.uint64)):
                break
    return kind + narrow.tobytes()


def unpack_numbers(content: bytes) -> Numbers:
    """What ``pack_numbers`` was given.

    Raises:
        DamagedBlockError: the bytes are not what it makes.
    """
    try:
        values = np.frombuffer(content, _TYPES[content[:1]], offset=1)
    except (KeyError, ValueError) as error:
        raise DamagedBlockError("it is no vector of numbers") from error
    return values.astype(np.float64 if content[:1] in _FLOATS else values.dtype)


def pack_hashes(lists: Mapping[str, Sequence[str]]) -> bytes:
    """Lists of hashes by name, as bytes."""
    return json.dumps({name: list(lists[name]) for name in HASH_FIELDS}).encode()


def _stored_value(value: Any) -> Any:
    """As sqlite3 gives it back: text that UTF-8 can hold, truth values as 0 and 1, no NaN."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return int(value) if isinstance(value, bool) else value
