"""The database behind a history file: opened, checked to be one, brought to this version."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from evalguard.errors import StoreError, UsageError
from evalguard.nights.history.migrations import APPLICATION_ID, SCHEMA_VERSION, migrate
from evalguard.nights.history.sqlite_errors import (
    RESCUE,
    DamagedHistoryError,
    is_busy,
    translate_errors,
)
from evalguard.store.atomic_files import disk_error, make_folder

PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
_OTHER_FILE_HINT = "name another file with --history"


def connect(path: Path, *, create: bool, patience: float = PATIENCE) -> sqlite3.Connection:
    """Open a history file, in autocommit mode; one of an earlier version is brought to this one.

    Args:
        create: make the file, and its folder, where there is none.

    Raises:
        UsageError: there is none, it is something else or damaged, or of a newer version.
        StoreError: the disk refuses, or another process keeps writing.
    """
    _check_place(path, create=create)
    with translate_errors(path, "write" if create else "read"):
        mode = "rwc" if create else "rw"
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode={mode}",
            uri=True,
            timeout=patience,
            isolation_level=None,
        )
        try:
            _prepare(connection, path, patience)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_place(path: Path, *, create: bool) -> None:
    log = path.with_name(f"{path.name}-wal")
    # Before the file: a file has its first page before there is a log, so that a log with something
    # in it and, after that, an empty file is not a history that another process is just starting.
    logged = _size(log)
    try:
        found = path.stat()
    except FileNotFoundError:
        if not create:
            raise UsageError(
                f"there is no history {path}",
                hint="`evalguard compare ... --history FILE` starts one",
            ) from None
        try:
            make_folder(path.parent)
        except OSError as error:
            raise disk_error(
                "start a history in", path.parent, error, hint=_OTHER_FILE_HINT
            ) from error
        return
    except OSError as error:
        raise UsageError(f"the history {path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(
            f"{path} is not a regular file, so it is not a history", hint=_OTHER_FILE_HINT
        )
    if found.st_size:
        return
    # sqlite3 would take it for a new file, and throw the log away, with all that is in it.
    if logged:
        raise DamagedHistoryError(
            f"the history {path} was emptied, and {log.name} beside it still holds nights",
            hint="nothing was touched; put back a copy of the file, with that log beside it",
        )
    if not create:
        raise UsageError(f"{path} is empty: no night was kept in it yet")


def _size(path: Path) -> int:
    """0 also where there is none, or none can be seen."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _prepare(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA foreign_keys = ON")
    with transaction(connection, writes=False):
        version = _version(connection, path)
        _check_schema(connection, path)
    if version < SCHEMA_VERSION:
        _upgrade(connection, path, patience)
    connection.execute("PRAGMA synchronous = FULL")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0 for a file without any. To be asked inside a transaction: a file
    that another process starts between two of these questions would look like a stranger's.

    Raises:
        UsageError: it is another program's database, or made by a newer evalguard.
    """
    made_by = _query_number(connection, "PRAGMA application_id")
    version = _query_number(connection, "PRAGMA user_version")
    if made_by != APPLICATION_ID:
        if made_by or version or _query_number(connection, "SELECT count(*) FROM sqlite_master"):
            raise UsageError(f"{path} is a database of another program", hint=_OTHER_FILE_HINT)
        return 0
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"the history {path} was written by a newer evalguard (version {version} of its "
            f"tables; this one knows {SCHEMA_VERSION})",
            hint="update evalguard, or name another file with --history",
        )
    return version


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what computes when it is read or written: a view may have no end, and a trigger change
    other nights.

    Raises:
        UsageError: there is any; a history has tables and indexes only.
    """
    query = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
    for kind, name in connection.execute(query):
        raise UsageError(
            f"{path} holds a {kind} ('{name}'), which no history of evalguard does",
            hint=_OTHER_FILE_HINT,
        )


def _upgrade(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    _set_wal(connection, patience)
    with transaction(connection):
        version = _version(connection, path)  # another process may have been faster
        if version < SCHEMA_VERSION:
            migrate(connection, version)
    with transaction(connection, writes=False):
        version = _version(connection, path)
    if version != SCHEMA_VERSION:
        raise StoreError(f"the history {path} stays at an earlier version", hint=RESCUE)


def _set_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Readers and a writer side by side; sqlite3 does not wait for others when it switches."""
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


def _query_number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


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
