"""Finished blocks in a folder, one file each: of a kind of content that can prove it is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Generic, TypeVar

from evalguard.errors import StoreError
from evalguard.store.cache_location import anybody_can_write
from evalguard.store.damage import DamagedBlockError
from evalguard.store.disk import make_folder, refusal, write_atomically

_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
# The number of the layout: a later layout gets a folder of its own beside this one.
_LAYOUT = "v1"
_HINT = "--cache-dir FOLDER keeps {what} elsewhere, --no-cache keeps none"

Content = TypeVar("Content")


class BlockCache(Generic[Content]):
    """Finished blocks, by model (or pair of models) and by requests.

    Every write is atomic, so a killed run leaves whole blocks only, and two processes may share a
    folder: both write the same content under the same name. A file that is damaged, or is not what
    its place says, is set aside under ``*.damaged`` and counts as absent.

    Attributes:
        what: the content in messages ("scores").
        problems: what was found doubtful, damaged or unreadable so far, one message each, for the
            caller to show; nothing is logged.
    """

    what = "blocks"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = [
            f"kept {self.what} in {place} are believed, and every user of this machine can write "
            "there"
            for place in (folder, folder.parent)
            if anybody_can_write(place)
        ]

    def to_bytes(self, key: str, block: str, content: Content) -> bytes | memoryview:
        """Return the file of a block."""
        raise NotImplementedError

    def from_bytes(self, data: bytes, key: str, block: str) -> Content:
        """Read a file back.

        Raises:
            DamagedBlockError: it is cut, changed, of another format, or another block's.
        """
        raise NotImplementedError

    def get(self, key: str, block: str) -> Content | None:
        """Return a finished block, or None.

        Args:
            key: digest of everything about the model that can change the content.
            block: digest of the block's requests, in order.
        """
        path = self._path(key, block)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            cause = error.strerror or error
            self.problems.append(f"kept {self.what} {path} cannot be read: {cause}")
            return None
        try:
            return self.from_bytes(data, key, block)
        except DamagedBlockError as error:
            self._set_aside(path, str(error))
            return None

    def put(self, key: str, block: str, content: Content) -> None:
        """Keep a finished block.

        Raises:
            StoreError: it could not be written (full disk, no permission); nothing is left behind
                and the content is still the caller's.
        """
        path = self._path(key, block)
        data = self.to_bytes(key, block, content)
        try:
            make_folder(path.parent)
            write_atomically(path, data)
        except OSError as error:
            hint = _HINT.format(what=self.what)
            raise refusal(f"keep {self.what} in", path.parent, error, hint=hint) from error

    def _path(self, key: str, block: str) -> Path:
        for name in (key, block):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is no digest, so it cannot name kept {self.what}")
        return self.folder / _LAYOUT / key / f"{block}.parquet"

    def _set_aside(self, path: Path, cause: str) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
        except OSError as error:
            place = f"it stays where it is ({error.strerror or error})"
        else:
            place = f"set aside as {aside.name}"
        self.problems.append(
            f"kept {self.what} {path} are not used: {cause}; {place}; scored again"
        )
