"""What sqlite3 says, as an error that a user can act on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evalguard.errors import EvalguardError, StoreError, UsageError

RESCUE = (
    "nothing was written to it; `evalguard history check` shows what is left, and `sqlite3 FILE "
    ".recover | sqlite3 NEW` takes what can be read into a new file"
)
_ELSEWHERE_HINT = "--history FILE keeps it elsewhere"


class DamagedHistoryError(UsageError):
    """A history file is no longer what was written."""


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


def is_busy(error: sqlite3.Error) -> bool:
    """Whether it is another process that is in the way ("locking protocol": many at once)."""
    return any(word in str(error) for word in ("locked", "busy", "locking protocol"))


def _to_evalguard_error(path: Path, doing: str, error: sqlite3.Error) -> EvalguardError:
    said = str(error)
    if is_busy(error):
        return StoreError(
            f"cannot {doing} the history {path}: another process has been writing to it all along",
            hint="try again when it has finished",
        )
    if "full" in said:
        return StoreError(
            f"cannot {doing} the history {path}: the disk is full", hint=_ELSEWHERE_HINT
        )
    if "readonly" in said or "unable to open" in said:
        return StoreError(
            f"cannot {doing} the history {path}: it, or its folder, cannot be written to",
            hint=_ELSEWHERE_HINT,
        )
    if "not a database" in said:
        return DamagedHistoryError(
            f"{path} is not a history: it is not a sqlite3 file", hint=_ELSEWHERE_HINT
        )
    if "malformed" in said:
        return DamagedHistoryError(f"the history {path} is damaged ({said})", hint=RESCUE)
    if isinstance(error, sqlite3.OperationalError) and "disk I/O" in said:
        return StoreError(
            f"cannot {doing} the history {path}: the disk fails", hint=_ELSEWHERE_HINT
        )
    return DamagedHistoryError(f"the history {path} cannot be used ({said})", hint=RESCUE)
