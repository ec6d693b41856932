"""Journal of a bisection: every finished block of every probe, on disk before anything goes on.

One JSON object a line, each with a digest of itself. A header says what the lines that name its
digest are of; lines are only ever appended, and those of another bisection have another header.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.errors import StoreError
from evalguard.settings import Value, digest_of
from evalguard.store.disk import make_folder, refusal
from evalguard.store.file_lock import FileLock
from evalguard.store.journal_entry import Entry, from_line, to_line

SCHEMA = "evalguard.journal/1"
_HINT = "what is finished is kept: the same command goes on from there"


@dataclass(slots=True, kw_only=True)
class Journal:
    """A journal that this process alone writes, with the entries of its header.

    Attributes:
        problems: what was found damaged or foreign, one message each, for the caller to show.
    """

    path: Path
    problems: list[str] = field(default_factory=list)
    _entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
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
            journal._open({"schema": SCHEMA, "of": dict(header), "search": dict(search or {})})
        except OSError as error:
            journal.close()
            raise refusal("write to", path, error, hint=_HINT) from error
        except BaseException:
            journal.close()
            raise
        return journal

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    def get(self, assignment: str, block: str) -> Entry | None:
        """Return what is finished, or None; ``block`` "": whether loading failed."""
        return self._entries.get((assignment, block))

    def add(self, entry: Entry) -> None:
        """Write an entry down; it is on the disk when this returns.

        Raises:
            StoreError: the disk refuses; the journal is as it was.
        """
        self._append({"journal": self._of, **entry.told()})
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
            record = from_line(line)
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
            entry = Entry.of(record)
        except (ValueError, TypeError, KeyError):
            return False
        self._entries[entry.assignment, entry.block] = entry
        return True

    def _append(self, record: Mapping[str, Value]) -> None:
        if self._file < 0:
            raise StoreError(f"the journal {self.path} is closed")
        data = memoryview(to_line(record))
        end = self._end + len(data)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            self._cut()
            raise refusal("write to", self.path, error, hint=_HINT) from error
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
