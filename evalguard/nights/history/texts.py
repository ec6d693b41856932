"""Texts of a history file: hashes of a task's documents, each list kept once."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import zlib
from collections.abc import Sequence

from evalguard.store.atomic_files import DamagedBlockError

# Hexadecimal texts of one length take half of their digits; anything else is JSON.
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_LARGEST_TEXTS = 2**31


def store_texts(connection: sqlite3.Connection, texts: Sequence[str]) -> int | None:
    """Keep a list of texts; return its id, None for an empty one."""
    if not texts:
        return None
    packed = _pack_texts(texts)
    digest = hashlib.blake2b(packed, digest_size=16).digest()
    found = connection.execute("SELECT id FROM texts WHERE digest = ?", (digest,)).fetchone()
    if found is not None:
        return int(found[0])
    inserted = connection.execute(
        "INSERT INTO texts (digest, packed) VALUES (?, ?)", (digest, packed)
    )
    return int(inserted.lastrowid or 0)


def read_texts(connection: sqlite3.Connection, number: int | None) -> tuple[str, ...]:
    """A list of texts by its id; () for None.

    Raises:
        DamagedBlockError: it is gone, or not what was written.
    """
    if number is None:
        return ()
    query = "SELECT digest, packed FROM texts WHERE id = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None or not isinstance(row[1], bytes):
        raise DamagedBlockError(f"texts {number} are gone")
    if hashlib.blake2b(row[1], digest_size=16).digest() != row[0]:
        raise DamagedBlockError(f"texts {number} are not what was kept")
    return _unpack_texts(row[1])


def _pack_texts(texts: Sequence[str]) -> bytes:
    width = len(texts[0])
    if all(len(text) == width and _HEX.fullmatch(text) for text in texts):
        return width.to_bytes(4, "little") + bytes.fromhex("".join(texts))
    return bytes(4) + zlib.compress(json.dumps(list(texts)).encode())


def _unpack_texts(packed: bytes) -> tuple[str, ...]:
    width, body = int.from_bytes(packed[:4], "little"), packed[4:]
    if not width:
        return tuple(json.loads(zlib.decompressobj().decompress(body, _LARGEST_TEXTS)))
    digits = body.hex()
    return tuple(digits[start : start + width] for start in range(0, len(digits), width))
