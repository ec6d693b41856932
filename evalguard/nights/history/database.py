"""The database behind a history file: opened, checked to be one, brought to this version.

What sqlite3 says against it becomes an error that a user can act on.
"""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from evalguard.errors import EvalguardError, StoreError, UsageError
from evalguard.nights.history.tables import (
    SCHEMA_VERSION,
    create_metric_tables,
    create_run_tables,
)
from evalguard.store.atomic_files import disk_error, make_folder

APPLICATION_ID = 0x45474849
"""What sqlite3 keeps in the head of the file: "EGHI"."""

PATIENCE = 30.0
"""Seconds to wait for another process that writes."""
_OTHER_FILE_HINT = "name another file with --history"
RESCUE = (
    "nothing was written to it; `evalguard history check` shows what is left, and `sqlite3 FILE "
    ".recover | sqlite3 NEW` takes what can be read into a new file"
)
_ELSEWHERE_HINT = "--history FILE keeps it elsewhere"


class DamagedHistoryError(UsageError):
    """A history file is no longer what was written."""


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
        status = path.stat()
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
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(
            f"{path} is not a regular file, so it is not a history", hint=_OTHER_FILE_HINT
        )
    if status.st_size:
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
    with transaction(connection, writes=False):
        version = _version(connection, path)
        _check_schema(connection, path)
    if version < SCHEMA_VERSION:
        _upgrade(connection, path, patience)
    connection.execute("PRAGMA foreign_keys = ON")
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
    """Make the tables, or take all nights over from those of an earlier version.

    All in one transaction: until it ends, the file is as it was, for others and for whoever opens
    it after this process was killed or had no room.
    """
    _set_wal(connection, patience)
    connection.execute("PRAGMA synchronous = FULL")
    with transaction(connection):
        version = _version(connection, path)  # another process may have been faster
        if not version:
            create_run_tables(connection)
            create_metric_tables(connection)
        elif version < SCHEMA_VERSION:
            from evalguard.nights.history.old_versions import upgrade_tables

            upgrade_tables(connection, version)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    if 0 < version < SCHEMA_VERSION:
        with suppress(sqlite3.Error):  # the room of the earlier tables, which can wait
            compact(connection)


def compact(connection: sqlite3.Connection) -> None:
    """Give back the room of what was removed."""
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _set_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Readers and a writer side by side; sqlite3 does not wait for others when it switches."""
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > end:
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


@contextmanager
def translate_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of sqlite3 into errors of evalguard.

    Args:
        doing: "read" or "write", for the message.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _to_evalguard_error(path, doing, error) from error
    except UnicodeDecodeError as error:  # sqlite3's message quotes bytes of the file
        raise DamagedHistoryError(f"the history {path} is damaged", hint=RESCUE) from error


def _is_busy(error: sqlite3.Error) -> bool:
    """Whether it is another process that is in the way ("locking protocol": many at once)."""
    return any(word in str(error) for word in ("locked", "busy", "locking protocol"))


def _to_evalguard_error(path: Path, doing: str, error: sqlite3.Error) -> EvalguardError:
    message = str(error)
    if _is_busy(error):
        return StoreError(
            f"cannot {doing} the history {path}: another process has been writing to it all along",
            hint="try again when it has finished",
        )
    if "full" in message:
        return StoreError(
            f"cannot {doing} the history {path}: the disk is full", hint=_ELSEWHERE_HINT
        )
    if "readonly" in message or "unable to open" in message:
        return StoreError(
            f"cannot {doing} the history {path}: it, or its folder, cannot be written to",
            hint=_ELSEWHERE_HINT,
        )
    if "not a database" in message:
        return DamagedHistoryError(
            f"{path} is not a history: it is not a sqlite3 file", hint=_ELSEWHERE_HINT
        )
    if "malformed" in message:
        return DamagedHistoryError(f"the history {path} is damaged ({message})", hint=RESCUE)
    if isinstance(error, sqlite3.OperationalError) and "disk I/O" in message:
        return StoreError(
            f"cannot {doing} the history {path}: the disk fails", hint=_ELSEWHERE_HINT
        )
    return DamagedHistoryError(f"the history {path} cannot be used ({message})", hint=RESCUE)
