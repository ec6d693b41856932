"""Vectors of a history file: per-document numbers, each kept once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalguard.nights.document_scores import HASH_FIELDS, DocumentHashes, DocumentScores
from evalguard.nights.history.packing import Numbers, pack, unpack
from evalguard.nights.history.texts import read_texts, store_texts
from evalguard.store.atomic_files import DamagedBlockError


def store_documents(
    connection: sqlite3.Connection, documents: DocumentScores
) -> dict[str, int | None]:
    """Keep the vectors and hashes of a metric's documents; return their ids by column."""
    hashes = documents.hashes
    kept: dict[str, int | None] = (
        {}
        if hashes is None
        else {name: store_texts(connection, getattr(hashes, name)) for name in HASH_FIELDS}
    )
    return kept | {
        "doc_ids": _store_vector(connection, documents.doc_ids),
        "prints": _store_vector(connection, documents.prints),
        "base_scores": _store_vector(connection, documents.base),
        "candidate_scores": _store_vector(connection, documents.candidate),
        "weights": None
        if documents.weights is None
        else _store_vector(connection, documents.weights),
    }


def requests_text(hashes: DocumentHashes | None) -> str:
    """How documents were asked, as a text to keep; "" where that is not known."""
    if hashes is None:
        return ""
    told = {"n_total": hashes.n_total, "run": dict(hashes.run)}
    return json.dumps(told, sort_keys=True, default=str)


def _store_vector(connection: sqlite3.Connection, values: Numbers) -> int:
    digest = digest_of_vector(values)
    found = connection.execute("SELECT id FROM vectors WHERE digest = ?", (digest,)).fetchone()
    if found is not None:
        return int(found[0])
    inserted = connection.execute(
        "INSERT INTO vectors (digest, packed) VALUES (?, ?)", (digest, pack(values))
    )
    return int(inserted.lastrowid or 0)


def digest_of_vector(values: Numbers) -> bytes:
    """16 bytes that tell vectors apart: of their kind and their numbers, bit for bit."""
    kind = b"f" if values.dtype == np.float64 else b"i"
    wide = values.astype("<f8" if kind == b"f" else "<i8", copy=False)
    return hashlib.blake2b(kind + wide.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class VectorReader:
    """Reads vectors, each once: a base's scores serve all candidates of many nights."""

    connection: sqlite3.Connection
    known: dict[int, Numbers]

    def hashes(self, ids: Mapping[str, int | None], asked: str) -> DocumentHashes | None:
        """The hashes of a metric's documents; None where they were not kept.

        Args:
            ids: by column.
            asked: ``requests_text`` of the night.

        Raises:
            DamagedBlockError: as ``documents``.
        """
        if ids["doc_hashes"] is None or not asked:
            return None
        told = json.loads(asked)
        found = {name: read_texts(self.connection, ids[name]) for name in HASH_FIELDS}
        return DocumentHashes(**found, n_total=int(told["n_total"]), run=dict(told["run"]))

    def documents(
        self, ids: tuple[int | None, ...], aggregation: Any, *, higher_is_better: bool
    ) -> DocumentScores:
        """The documents of a metric, without their hashes.

        Args:
            ids: of ``rows.VECTOR_COLUMNS``, in this order.

        Raises:
            DamagedBlockError: a vector is gone, or not what was written.
        """
        found = [None if number is None else self.get(number) for number in ids]
        *needed, weights = found
        if any(values is None for values in needed):
            raise DamagedBlockError("its documents' numbers are not all there")
        doc_ids, prints, base, candidate = (values for values in needed if values is not None)
        if len({values.shape for values in found if values is not None}) > 1:
            raise DamagedBlockError("its documents' numbers are of different lengths")
        return DocumentScores(
            aggregation=aggregation,
            higher_is_better=higher_is_better,
            doc_ids=doc_ids,
            prints=prints.view(np.uint64),
            base=base,
            candidate=candidate,
            weights=weights,
        )

    def get(self, number: int, *, plain: bool = False) -> Numbers:
        """A vector by its id.

        Args:
            plain: it must not need another one: references are one deep.

        Raises:
            DamagedBlockError: it is gone, or not what was written.
        """
        if number in self.known:
            return self.known[number]
        row = self.connection.execute(
            "SELECT reference, packed, digest FROM vectors WHERE id = ?", (number,)
        ).fetchone()
        if row is None:
            raise DamagedBlockError(f"vector {number} is gone")
        reference, packed, digest = row
        if not isinstance(packed, bytes):
            raise DamagedBlockError(f"vector {number} is not a packed one")
        if plain and reference is not None:
            raise DamagedBlockError(f"vector {number} is packed against one that is packed itself")
        against = None if reference is None else self.get(reference, plain=True)
        values = unpack(packed, against)
        if digest_of_vector(values) != digest:
            raise DamagedBlockError(f"vector {number} is not what was kept")
        self.known[number] = values
        return values
