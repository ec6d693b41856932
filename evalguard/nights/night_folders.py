"""Folders of nights: where they lie, who writes there now, and the journal of their pairs.

One JSON object a line, each with a digest of itself; the first says which night it is.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from evalguard.core.settings import Value
from evalguard.errors import EvaluationError, StoreError
from evalguard.nights.night_report import SCHEMA, PairNight
from evalguard.regular_file import read_regular_text
from evalguard.report.record_documents import read_record, replace_non_finite, write_record
from evalguard.store.atomic_files import disk_error, make_folder
from evalguard.store.leases import FileLock
from evalguard.store.run_folder import LATER_HINT, NIGHT_RESULT, is_later
from evalguard.store.sealed_files import decode_line, encode_line


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
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']}, since {holder['since']} ({path})"
    except (OSError, ValueError, KeyError, TypeError):  # it has begun this very moment
        return str(path)


def dump_pair(pair: PairNight) -> dict[str, Value]:
    """The pair as JSON values; a number that JSON cannot hold is null."""
    record: dict[str, Value] = replace_non_finite(write_record(pair), "", {})
    return record


def read_pair(told: Mapping[str, Any]) -> PairNight:
    """Read back what ``dump_pair`` gave; keys that are not known are left out.

    Raises:
        StoreError: it is something else.
    """
    pair: PairNight = read_record(PairNight, told, "pair")
    return pair


NIGHT_JOURNAL_NAME = "journal.jsonl"
_HINT = "what is finished is kept: the same command goes on from there"
# A folder of results may come with a repository: a link in a journal's place leads anywhere, a pipe
# is waited for.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NightJournal:
    """The journal of one night's folder; this process alone writes it.

    Attributes:
        folder: of the night.
        head: its first record; {} for a new one.
        records: all others that are whole, the oldest first.
        damaged: lines that are not what was written; the last one, cut by a crash, is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NIGHT_JOURNAL_NAME
        self.head: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []
        self.damaged = 0
        self._read()

    def begin(self, head: Mapping[str, Value]) -> None:
        """Write the first record, which makes the folder a night.

        Raises:
            StoreError: the disk refuses.
        """
        self._append(head)
        self.head = dict(head)

    def add(self, record: Mapping[str, Value]) -> None:
        """Write a record down; it is on the disk when this returns.

        Raises:
            StoreError: the disk refuses.
        """
        self._append(record)
        self.records.append(dict(record))

    def _read(self) -> None:
        try:
            with open(self.path, "rb", opener=_open_safely) as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from error
        whole = data[: data.rfind(b"\n") + 1]
        decoded = [decode_line(line) for line in whole.splitlines()]
        sound = [record for record in decoded if record is not None]
        self.damaged = len(decoded) - len(sound)
        if sound and "schema" in sound[0]:
            self.head, *self.records = sound
        if len(whole) < len(data):
            self._cut(len(whole))

    def _cut(self, size: int) -> None:
        """Take half a line away, which would spoil the next one."""
        try:
            with open(self.path, "r+b", opener=_open_safely) as file:
                file.truncate(size)
        except OSError as error:
            raise disk_error("write to", self.path, error, hint=_HINT) from error

    def _append(self, record: Mapping[str, Value]) -> None:
        try:
            make_folder(self.path.parent)
            with open(self.path, "ab", opener=_open_safely) as file:
                file.write(encode_line(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error("write to", self.path, error, hint=_HINT) from error


def _open_safely(path: str, flags: int) -> int:
    return os.open(path, flags | _SAFE_FLAGS, 0o666)


JOURNAL_SCHEMA = "evalguard.night-journal/1"
_FOLDER_TIME = "%Y%m%dT%H%M%SZ"


def new_night_folder(root: Path, now: datetime) -> Path:
    """A folder for a night that begins now; it is not made yet."""
    name = now.astimezone(timezone.utc).strftime(_FOLDER_TIME)
    folder, number = root / name, 1
    while folder.exists():
        number += 1
        folder = root / f"{name}-{number}"
    return folder


def find_unfinished_night(root: Path, head: Mapping[str, Value], *, since: datetime) -> Path | None:
    """The latest night of the same kind that began since then and was never finished.

    Args:
        head: what its journal has to begin with, but for the time.
    """
    for folder in reversed(list(_night_folders(root))):
        if (folder / NIGHT_RESULT).exists():
            continue
        stored = NightJournal(folder).head
        same = {name: stored.get(name) for name in head} == dict(head)
        if same and str(stored.get("created", "")) >= since.isoformat(timespec="seconds"):
            return folder
    return None


def latest_night_name(root: Path) -> str:
    """Name of the night that is the latest by its name, finished or not; "" for none."""
    return max((folder.name for folder in _night_folders(root)), default="")


def read_last_night(
    root: Path, guard: str, *, before: Path, note: Callable[[str], None]
) -> tuple[str, tuple[PairNight, ...]] | None:
    """When the night before was, and what its pairs came to; None for the first one.

    Args:
        note: takes which nights are left out, and why.
    """
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        document = _read_result(folder / NIGHT_RESULT)
        if is_later(document.get("schema"), (SCHEMA,)):
            note(
                f"{folder / NIGHT_RESULT} is left out, and this night compared with one before it: "
                f"{LATER_HINT}"
            )
        elif document.get("schema") == SCHEMA and document.get("guard") == guard:
            try:
                return str(document["created"]), tuple(map(read_pair, document["pairs"]))
            except (StoreError, TypeError, KeyError):
                continue
    return None


def list_unfinished_nights(root: Path, guard: str, *, before: Path) -> tuple[dict[str, Any], ...]:
    """Records of the nights directly before that their process did not live to finish.

    Args:
        guard: digest of the guard files: where they changed, what died may be mended.
    """
    records: list[dict[str, Any]] = []
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        journal = NightJournal(folder)
        if journal.head.get("guard") != guard:
            continue
        if (folder / NIGHT_RESULT).exists():
            break
        records += journal.records
    return tuple(records)


def hours_ago(hours: float) -> datetime:
    """The time so many hours ago."""
    return datetime.now(timezone.utc) - timedelta(hours=hours)


def _night_folders(root: Path) -> Iterator[Path]:
    """Folders of nights, the oldest first: they are named by their time."""
    for folder in sorted(root.glob("[0-9]*T[0-9]*Z*")):
        if folder.is_dir() and not folder.is_symlink():
            yield folder


def _read_result(path: Path) -> dict[str, Any]:
    """What a night has written; {} where it is not finished, or the file is none."""
    try:
        document = json.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
