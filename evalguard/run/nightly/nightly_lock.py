"""The lock that keeps a night from being run twice at once; one of a dead process holds nobody."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from evalguard.errors import EvaluationError
from evalguard.store.file_lock import FileLock


@contextmanager
def hold_nightly_lock(path: Path) -> Iterator[str]:
    """Hold the lock; yields a note where the file system has no locks, else "".

    The kernel frees it when the process ends, however it does.

    Raises:
        EvaluationError: another process holds it; the message says which, and since when.
    """
    try:
        lock = FileLock.tried(path)
    except OSError as error:
        yield (
            f"{path.parent} has no locks ({error.strerror or error}): nothing keeps another "
            "night from running at the same time"
        )
        return
    if lock is None:
        raise EvaluationError(
            f"another night of this guard file is running: {_lock_holder(path)}",
            hint="wait until it has finished, or end that process; then the same command goes on",
        )
    try:
        path.write_text(json.dumps(_lock_record()), encoding="utf-8")
        yield ""
    finally:
        lock.release()


def _lock_record() -> dict[str, object]:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _lock_holder(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f"process {told['process']} on {told['host']}, since {told['since']} ({path})"
    except (OSError, ValueError, KeyError, TypeError):  # it has begun this very moment
        return str(path)
