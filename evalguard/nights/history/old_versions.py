"""Histories of versions 1 to 4, taken over when they are opened.

Their vectors were packed in a way of their own: a header (layout, coding, length, CRC-32 of all
else) and a body, which zlib compresses where that makes it smaller. Layout 2 has values one after
the other; layout 1 byte planes in place of values (what HDF5 calls the shuffle filter), differences
of neighbours in place of integers, a coding for one value many times, and floats against those of
another vector. Hashes were five lists of texts.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evalguard.nights.document_scores import HASH_FIELDS
from evalguard.nights.history.tables import (
    METRIC_COLUMNS,
    NUMBER_COLUMNS,
    Numbers,
    checksum,
    create_metric_tables,
    insert_metric,
    pack_hashes,
    pack_numbers,
    store_vector,
)

# What version 1 lacks, 3 added, and 4 added.
_DEFAULTS = {"accepted": "", "asked": "", "margin": None, "margin_text": ""} | dict.fromkeys(
    HASH_FIELDS
)
_HEADER = struct.Struct("<BBII")
_CONSTANT, _BITS, _FLOAT32, _FLOAT64, _INT64 = range(5)
_COMPRESSED, _AGAINST, _CODINGS = 0x40, 0x80, 0x0F
_TYPES = {_FLOAT32: "<f4", _FLOAT64: "<f8", _INT64: "<i8"}
# A few bytes may say that they are as many: a gigabyte when it is unpacked, and not all memory.
_LARGEST = 2**30
# TypeError: there is no such row, or something else in it.
_DAMAGED = (ValueError, KeyError, IndexError, TypeError, struct.error, zlib.error)


def upgrade_tables(connection: sqlite3.Connection, version: int) -> None:
    """Take a file to this version, inside a transaction that the caller has begun.

    What is damaged is kept, and stays damaged.

    Raises:
        sqlite3.Error: it cannot be done.
    """
    if version == 1:  # its rows had no checksums
        connection.execute("ALTER TABLE runs ADD COLUMN checksum INTEGER")
        for *row, _ in connection.execute("SELECT * FROM runs").fetchall():
            connection.execute(
                "UPDATE runs SET checksum = ? WHERE number = ?", (checksum(row), row[0])
            )
    else:
        connection.execute("ALTER TABLE runs RENAME COLUMN seal TO checksum")
    connection.execute("DROP INDEX metrics_of_a_run")
    connection.execute("ALTER TABLE metrics RENAME TO old_metrics")
    connection.execute("ALTER TABLE vectors RENAME TO old_vectors")
    create_metric_tables(connection)
    vectors = _OldVectors(connection)
    rows = connection.execute("SELECT * FROM old_metrics")
    names = [column[0] for column in rows.description]
    for row in rows:
        values = dict(zip(names, row, strict=True))
        sealed = [value for name, value in values.items() if name != "seal"]
        damaged = version > 1 and checksum(sealed) != values.get("seal")
        insert_metric(connection, vectors.stored({**_DEFAULTS, **values}), damaged=damaged)
    for table in ("old_metrics", "old_vectors", *(["texts"] if version > 2 else [])):
        connection.execute(f"DROP TABLE {table}")


@dataclass(frozen=True, slots=True)
class _OldVectors:
    """Stores vectors of an earlier version anew, each once.

    ``new`` has the new id by the old ones; ``bases`` vectors that others are packed against.
    """

    connection: sqlite3.Connection
    new: dict[tuple[Any, ...], int] = field(default_factory=dict)
    bases: dict[int, Numbers] = field(default_factory=dict)

    def stored(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a metric with the ids of its vectors in the new table."""
        row = {name: fields.get(name) for name in METRIC_COLUMNS}
        for name in NUMBER_COLUMNS:
            if row[name] is not None:
                row[name] = self._new_id(name == "prints", row[name])
        if fields[HASH_FIELDS[0]] is not None:
            row["hashes"] = self._new_id("hashes", *(fields[name] for name in HASH_FIELDS))
        return row

    def _new_id(self, kind: Any, *old: Any) -> int:
        key = (kind, *old)
        if key not in self.new:
            try:
                content = self._hashes(old) if kind == "hashes" else self._numbers(kind, old[0])
            except _DAMAGED:
                self.new[key] = self._store_damaged(key)
            else:
                self.new[key] = store_vector(self.connection, content)
        return self.new[key]

    def _store_damaged(self, key: tuple[Any, ...]) -> int:
        """A vector that reads as damaged, with what is left of the old one."""
        table = "texts" if key[0] == "hashes" else "old_vectors"
        row = self.connection.execute(
            f"SELECT packed FROM {table} WHERE id = ?", (key[1],)
        ).fetchone()
        added = self.connection.execute(
            "INSERT INTO vectors (digest, content) VALUES (?, ?)",
            (f"damaged: {key}".encode(), row[0] if row and row[0] else b""),
        )
        return int(added.lastrowid or 0)

    def _numbers(self, unsigned: bool, number: int) -> bytes:
        values = self._vector(number)
        return pack_numbers(values.view(np.uint64) if unsigned else values)

    def _vector(self, number: int, *, plain: bool = False) -> Numbers:
        """The numbers of an old vector; ``plain``: not packed against another one."""
        query = "SELECT reference, packed, digest FROM old_vectors WHERE id = ?"
        reference, packed, digest = self.connection.execute(query, (number,)).fetchone()
        if reference is not None and reference not in self.bases:
            if plain:
                raise ValueError("a vector is packed against one that is packed itself")
            self.bases[reference] = self._vector(reference, plain=True)
        values = _unpack(packed, self.bases.get(reference))
        kind = b"f" if values.dtype == np.float64 else b"i"
        if hashlib.blake2b(kind + values.tobytes(), digest_size=16).digest() != digest:
            raise ValueError("a vector is not what was kept")
        return values

    def _hashes(self, ids: tuple[Any, ...]) -> bytes:
        lists = [() if number is None else self._texts(number) for number in ids]
        return pack_hashes(dict(zip(HASH_FIELDS, lists, strict=True)))

    def _texts(self, number: int) -> tuple[str, ...]:
        query = "SELECT digest, packed FROM texts WHERE id = ?"
        digest, packed = self.connection.execute(query, (number,)).fetchone()
        if hashlib.blake2b(packed, digest_size=16).digest() != digest:
            raise ValueError("texts are not what was kept")
        width, body = int.from_bytes(packed[:4], "little"), packed[4:]
        if not width:
            return tuple(json.loads(_unzip(body, _LARGEST)))
        digits = body.hex()
        return tuple(digits[start : start + width] for start in range(0, len(digits), width))


def _unpack(packed: bytes, reference: Numbers | None) -> Numbers:
    """The float64 or int64 numbers of a packed vector.

    Args:
        reference: of layout 1, the vector that it was packed against.
    """
    layout, coding, n, crc = _HEADER.unpack_from(packed)
    body = packed[_HEADER.size :]
    if zlib.crc32(_HEADER.pack(layout, coding, n, 0) + body) != crc or layout not in (1, 2):
        raise ValueError("a vector was changed or cut")
    if coding & _COMPRESSED:
        body = _unzip(body, 8 * n + 8)
    kind = coding & _CODINGS
    if kind in (_CONSTANT, _BITS) and n > _LARGEST // 8:
        raise ValueError("no vector that evalguard packs")
    if kind == _CONSTANT:
        return np.full(n, np.frombuffer(body, "<f8")[0])
    if kind == _BITS:
        return np.unpackbits(np.frombuffer(body, np.uint8), count=n).astype(np.float64)
    if layout == 1:
        body = _join_planes(body, n)
    values = np.frombuffer(body, _TYPES[kind])
    if kind == _INT64:
        return np.cumsum(values) if layout == 1 else values
    if coding & _AGAINST:
        if reference is None or reference.shape != (n,):
            raise ValueError("the scores that it was packed against are not there")
        words = np.frombuffer(body, f"<u{values.itemsize}")
        steps = (words >> 1) ^ (0 - (words & 1))  # 0, 1, 2, 3 ... are 0, -1, 1, -2
        values = (steps + reference.astype(values.dtype).view(words.dtype)).view(values.dtype)
    return values.astype(np.float64)


def _join_planes(body: bytes, n: int) -> bytes:
    """Of all first bytes, then all second ones ..., the values."""
    return np.frombuffer(body, np.uint8).reshape(-1, n).T.tobytes() if n else body


def _unzip(zipped: bytes, largest: int) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(zipped, min(largest, _LARGEST))
    if not unpacker.eof:
        raise ValueError("it is cut, or larger than what evalguard packs")
    return content
