"""Journal of a night: what every pair came to, on disk before the next one begins.

One JSON object a line, each with a digest of itself; the first says which night it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.store.atomic_files import disk_error, make_folder
from evalguard.store.checked_lines import decode_line, encode_line

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
