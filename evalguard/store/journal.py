"""Journal of a bisection: every finished block of every probe, on disk before anything goes on.

One JSON object a line, each with a digest of itself. A header says what the lines that name its
digest are of; lines are only ever appended, and those of another bisection have another header.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.oracle import Outcome, Refusal
from evalguard.core.settings import Value, digest_of
from evalguard.errors import StoreError
from evalguard.store.files import FileLock, disk_error, make_folder

BISECTION_JOURNAL_SCHEMA = "evalguard.journal/1"
_HINT = "what is finished is kept: the same command goes on from there"


@dataclass(slots=True, kw_only=True)
class Journal:
    """A journal that this process alone writes, with the entries of its header.

    Attributes:
        problems: what was found damaged or foreign, one message each, for the caller to show.
    """

    path: Path
    problems: list[str] = field(default_factory=list)
    _entries: dict[tuple[str, str], JournalEntry] = field(default_factory=dict)
    _file: int = -1
    _end: int = 0
    _lock: FileLock | None = None
    _of: str = ""

    @classmethod
    def opened(
        cls, path: Path, header: Mapping[str, Value], *, search: Mapping[str, Value] | None = None
    ) -> Journal:
        """Open a journal, or begin one; entries of another header are not used.

        Args:
            header: what all searches of a bisection have in common: versions, sides, seed.
            search: what tells them apart (the metric, settings repaired before): several of one
                bisection write one journal.

        Raises:
            StoreError: another process writes it, or the disk refuses.
        """
        journal = cls(path=path)
        try:
            make_folder(path.parent)
            journal._take_lock()
            journal._open(
                {
                    "schema": BISECTION_JOURNAL_SCHEMA,
                    "of": dict(header),
                    "search": dict(search or {}),
                }
            )
        except OSError as error:
            journal.close()
            raise disk_error("write to", path, error, hint=_HINT) from error
        except BaseException:
            journal.close()
            raise
        return journal

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    def get(self, assignment: str, block: str) -> JournalEntry | None:
        """Return what is finished, or None; ``block`` "": whether loading failed."""
        return self._entries.get((assignment, block))

    def add(self, entry: JournalEntry) -> None:
        """Write an entry down; it is on the disk when this returns.

        Raises:
            StoreError: the disk refuses; the journal is as it was.
        """
        self._append({"journal": self._of, **entry.as_record()})
        self._entries[entry.assignment, entry.block] = entry

    def close(self) -> None:
        """Let others write it. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _take_lock(self) -> None:
        place = self.path.with_name(f"{self.path.name}.lock")
        try:
            self._lock = FileLock.tried(place)
        except OSError as error:
            if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
                raise
            self.problems.append(
                f"{self.path.parent} has no locks ({error.strerror or error}): nothing keeps "
                "another process from writing the same journal"
            )
            return
        if self._lock is None:
            raise StoreError(
                f"another process is writing the journal {self.path}",
                hint="wait until it has finished, or let this bisection write elsewhere",
            )

    def _open(self, header: dict[str, Value]) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o666)
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        self._end = data.rfind(b"\n") + 1
        if self._end < len(data):
            self.problems.append(f"the last line of {self.path} was never finished: it is left out")
            os.ftruncate(self._file, self._end)
        self._of = digest_of(header)
        if not self._read(data[: self._end], header):
            self._append(header)

    def _read(self, data: bytes, header: Mapping[str, Value]) -> bool:
        """Take the entries of this header; return whether it is there."""
        headers: dict[str, Value] = {}  # their digest -> what they are of
        damaged = foreign = 0
        for line in data.splitlines():
            record = decode_line(line)
            if record is None:
                damaged += 1
            elif "schema" in record:
                headers[digest_of(record)] = record.get("of")
            elif (of := record.pop("journal", "")) != self._of:
                foreign += headers.get(of) != header["of"]
            else:
                damaged += not self._take(record)
        if damaged:
            self.problems.append(f"damaged lines of {self.path} are left out: {damaged}")
        if foreign:
            self.problems.append(
                f"{self.path} has {foreign} finished blocks of another bisection (other versions, "
                "base or seed): they are not used"
            )
        return self._of in headers

    def _take(self, record: Mapping[str, Any]) -> bool:
        try:
            entry = JournalEntry.of(record)
        except (ValueError, TypeError, KeyError):
            return False
        self._entries[entry.assignment, entry.block] = entry
        return True

    def _append(self, record: Mapping[str, Value]) -> None:
        if self._file < 0:
            raise StoreError(f"the journal {self.path} is closed")
        data = memoryview(encode_line(record))
        end = self._end + len(data)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            self._cut()
            raise disk_error("write to", self.path, error, hint=_HINT) from error
        except BaseException:  # Ctrl-C: a line that is whole by now is kept
            if os.fstat(self._file).st_size == end:
                self._end = end
            else:
                self._cut()
            raise
        self._end = end

    def _cut(self) -> None:
        """Take half a line away, which would spoil the next one."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._end)


# Entry of a journal: how one block of documents went under one assignment of the settings.


_OUTCOMES: tuple[str, ...] = ("scored", *get_args(Refusal))
_DIGEST_FIELD = "check"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JournalEntry:
    """How one block of documents went under one assignment of the settings.

    Attributes:
        assignment: digest of the effective assignment, the code and the environment.
        block: digest of the block; "" where the model could not even be loaded.
        outcome: "scored", or why there are no scores.
        values: float64, shape (n,), of the block's documents; None unless scored.
        reason: what went wrong, in one line.
        seconds: what it took.
        settings: those at their candidate value, for people to read.
    """

    assignment: str
    block: str
    outcome: Outcome
    values: NDArray[np.float64] | None = None
    reason: str = ""
    seconds: float = 0.0
    settings: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Value]:
        """Return the entry as plain JSON data."""
        values = None if self.values is None else [_plain_number(v) for v in self.values.tolist()]
        return {
            "assignment": self.assignment,
            "block": self.block,
            "settings": list(self.settings),
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": round(self.seconds, 6),
            "values": values,  # type: ignore[dict-item]
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> JournalEntry:
        """Read an entry back.

        Raises:
            ValueError, TypeError, KeyError: it is none, or one of another version.
        """
        values = record["values"]
        outcome = record["outcome"]
        if outcome not in _OUTCOMES or (outcome == "scored") != (values is not None):
            raise ValueError(f"no outcome: {outcome}")
        return cls(
            assignment=str(record["assignment"]),
            block=str(record["block"]),
            outcome=outcome,
            values=None if values is None else np.array([float(v) for v in values]),
            reason=str(record["reason"]),
            seconds=float(record["seconds"]),
            settings=tuple(record["settings"]),
        )


def encode_line(record: Mapping[str, Value]) -> bytes:
    """Return a record as one line, with a digest of itself."""
    line = json.dumps({**record, _DIGEST_FIELD: digest_of(dict(record))}, allow_nan=False)
    return f"{line}\n".encode()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return a line's record; None unless it is whole, and as it was written."""
    try:
        record = json.loads(line)
        check = record.pop(_DIGEST_FIELD)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if check == digest_of(record) else None


def _plain_number(value: float) -> float | str:
    """JSON has no number for NaN and infinity."""
    return value if np.isfinite(value) else str(value)


# Journal of a night: what every pair came to, on disk before the next one begins.
#
# One JSON object a line, each with a digest of itself; the first says which night it is.


NIGHT_JOURNAL_NAME = "journal.jsonl"
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
        found = [decode_line(line) for line in whole.splitlines()]
        sound = [record for record in found if record is not None]
        self.damaged = len(found) - len(sound)
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
