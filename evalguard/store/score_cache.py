"""The score cache: finished blocks of responses, kept so that no block is scored twice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.scorer import Response
from evalguard.store.block_file import DamagedBlockError, from_bytes, to_bytes
from evalguard.store.cache_location import anybody_can_write
from evalguard.store.disk import make_folder, refusal, write_atomically

_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
# The number of the layout: a later layout gets a folder of its own beside this one.
_LAYOUT = "v1"
_HINT = "--cache-dir FOLDER keeps scores elsewhere, --no-cache keeps none"


class ScoreCache:
    """Blocks of responses in a folder, one file each, by model and by requests.

    Every write is atomic, so a killed run leaves whole blocks only, and two processes may share a
    folder: both write the same content under the same name. A file that is damaged, or is not what
    its place says, is set aside under ``*.damaged`` and counts as absent.

    Attributes:
        problems: what was found doubtful, damaged or unreadable so far, one message each, for the
            caller to show; nothing is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = [
            f"kept scores in {place} are believed, and every user of this machine can write there"
            for place in (folder, folder.parent)
            if anybody_can_write(place)
        ]

    def get(self, key: str, block: str) -> list[Response] | None:
        """Return the responses of a finished block, or None.

        Args:
            key: digest of everything about the model that can change a score.
            block: digest of the block's requests, in order.
        """
        path = self._path(key, block)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"kept scores {path} cannot be read: {error.strerror or error}")
            return None
        try:
            return from_bytes(data, key, block)
        except DamagedBlockError as error:
            self._set_aside(path, str(error))
            return None

    def put(self, key: str, block: str, responses: Sequence[Response]) -> None:
        """Keep a finished block.

        Raises:
            StoreError: it could not be written (full disk, no permission); nothing is left behind
                and the responses are still the caller's.
        """
        path = self._path(key, block)
        data = to_bytes(key, block, responses)
        try:
            make_folder(path.parent)
            write_atomically(path, data)
        except OSError as error:
            raise refusal("keep scores in", path.parent, error, hint=_HINT) from error

    def _path(self, key: str, block: str) -> Path:
        for name in (key, block):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is no digest, so it cannot name kept scores")
        return self.folder / _LAYOUT / key / f"{block}.parquet"

    def _set_aside(self, path: Path, cause: str) -> None:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
        except OSError as error:
            place = f"it stays where it is ({error.strerror or error})"
        else:
            place = f"set aside as {aside.name}"
        self.problems.append(f"kept scores {path} are not used: {cause}; {place}; scored again")
