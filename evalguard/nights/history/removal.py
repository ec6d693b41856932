"""Taking runs out of a history file, and giving back the room that they took."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from evalguard.nights.history.database import connect, transaction
from evalguard.nights.history.night_rows import VECTOR_COLUMNS
from evalguard.nights.history.sqlite_errors import translate_errors

_TEXT_COLUMNS = ("doc_hashes", "prompt_hashes", "target_hashes", "asked_hashes", "token_hashes")


def remove_runs(path: Path, numbers: Sequence[int]) -> None:
    """Remove runs with everything that no other run needs, in one transaction; then compact.

    Raises:
        UsageError: there is no history, or it is damaged.
        StoreError: the disk refuses; the file is as it was, or only not compacted.
    """
    connection = connect(path, create=False)
    try:
        with translate_errors(path, "write"):
            with transaction(connection):
                _delete_runs(connection, numbers)
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _delete_runs(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    rows = [(number,) for number in numbers]
    connection.executemany("DELETE FROM metrics WHERE run = ?", rows)
    connection.executemany("DELETE FROM runs WHERE number = ?", rows)
    used = _used_ids(VECTOR_COLUMNS)
    # Vectors that are packed against another one need it, whoever else has forgotten that.
    needed = f"SELECT reference FROM vectors WHERE reference IS NOT NULL AND id IN ({used})"
    connection.execute(f"DELETE FROM vectors WHERE id NOT IN ({used} UNION {needed})")
    connection.execute(f"DELETE FROM texts WHERE id NOT IN ({_used_ids(_TEXT_COLUMNS)})")
    connection.execute(
        "DELETE FROM environments WHERE digest NOT IN (SELECT environment FROM runs)"
    )


def _used_ids(columns: Sequence[str]) -> str:
    """Query of all ids that metrics name in some columns."""
    return " UNION ".join(
        f"SELECT {name} FROM metrics WHERE {name} IS NOT NULL" for name in columns
    )
