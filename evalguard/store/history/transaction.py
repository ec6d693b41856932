"""One transaction of a history file: read at one moment, written as a whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def transaction(connection: sqlite3.Connection, *, writes: bool = True) -> Iterator[None]:
    """Whatever other processes write meanwhile is not seen inside.

    Args:
        connection: in autocommit mode.
        writes: wait for the right to write before anything is read.
    """
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
