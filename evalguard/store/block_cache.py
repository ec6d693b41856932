"""Finished blocks in a folder, one file each: of a kind of content that can prove it is whole.

The score cache holds finished blocks of responses, so that no block is scored twice.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from evalguard.core.divergence import Divergence, Reference
from evalguard.core.scorer import ComparedAnswer, Response
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.store.answer_table import (
    block_from_bytes,
    block_to_bytes,
    records_from_bytes,
    records_to_bytes,
)
from evalguard.store.atomic_files import (
    DamagedBlockError,
    disk_error,
    make_folder,
    set_aside,
    write_atomically,
)
from evalguard.store.cache_folder import BLOCK_SUFFIX, LAYOUT, anybody_can_write, write_description
from evalguard.store.leases import Lease
from evalguard.store.sealed_files import read_sealed_bytes, seal_bytes

_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
_HINT = "--cache-dir FOLDER or EVALGUARD_CACHE_DIR keeps it elsewhere, --no-cache keeps none"
# When a block was last used is known to the hour: noting every reading would be for nothing.
_USE_NOTED_EVERY = 3600.0
# The block itself will not be written either, and that is said then.
_SAID_BY_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_LINK = "it is a link, and links in a cache are not followed"
_FORGERY_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
Content = TypeVar("Content")
Written = TypeVar("Written")


class BlockCache(Generic[Content]):
    """Finished blocks, by model (or pair of models) and by requests.

    Every write is atomic, so a killed run leaves whole blocks only, and two processes may share a
    folder; ``locked`` keeps them from doing the same work. A file that is damaged, or is not what
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
            f"kept {self.what} in {path} are believed, and every user of this machine can write "
            "there"
            for path in (folder, folder.parent)
            if anybody_can_write(path)
        ]
        self._held: set[Path] = set()

    @property
    def current(self) -> Path:
        """Where blocks of this layout lie, in a folder per key."""
        return self.folder / LAYOUT

    def to_bytes(self, key: str, block: str, content: Content) -> bytes | memoryview:
        """Return the file of a block, which holds ``UNSEALED``."""
        raise NotImplementedError

    def from_bytes(self, data: bytes, key: str, block: str) -> Content:
        """Read a file back, of which no bit was changed since it was written.

        Raises:
            DamagedBlockError: it is of another format, or another block's.
        """
        raise NotImplementedError

    def get(self, key: str, block: str, *, mark: bool = True) -> Content | None:
        """Return a finished block, or None.

        Args:
            key: digest of everything about the model that can change the content.
            block: digest of the block's requests, in order.
            mark: whether this counts as using it.
        """
        path = self._path(key, block)
        if path.parent.is_symlink():
            self._say(f"kept {self.what} in {path.parent} are not used: {_LINK}")
            return None
        try:
            content = self._found(path, key, block)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say(f"kept {self.what} {path} cannot be read: {error.strerror or error}")
            return None
        if content is not None and mark:
            _mark_used(path)
        return content

    def holds(self, key: str, block: str) -> bool:
        """Whether there is a file of a block; only reading it tells whether it is whole."""
        return self._path(key, block).is_file()

    def put(self, key: str, block: str, content: Content) -> None:
        """Keep a finished block.

        Raises:
            StoreError: it could not be written (full disk, no permission); nothing is left behind
                and the content is still the caller's.
        """
        path = self._path(key, block)
        data = seal_bytes(self.to_bytes(key, block, content))
        try:
            self._in_folder(path, lambda: write_atomically(path, data))
        except OSError as error:
            # The folder of the cache, not of this model: what a disk refuses is said once.
            raise disk_error("write to", self.folder.parent, error, hint=_HINT) from error

    def drop(self, key: str, block: str) -> None:
        """Remove a block, if it is there; a disk that refuses keeps it until it is pruned."""
        with contextlib.suppress(OSError):
            self._path(key, block).unlink()

    @contextmanager
    def locked(self, key: str, block: str) -> Iterator[bool]:
        """Hold a block while it is being made, unless another process does; it is not waited for.

        On a network file system too, whatever its locks are worth (``store.leases``).

        Yields:
            Whether it is this process's turn. Where the disk takes no lease it always is.
        """
        path = self._path(key, block).with_suffix(".lock")
        if path in self._held:
            yield True
            return
        lock = None
        try:
            lock = self._in_folder(path, lambda: Lease.tried(path))
        except OSError as error:
            self._say_no_leases(error)
        else:
            if lock is None:
                yield False
                return
        self._held.add(path)
        try:
            yield True
        finally:
            self._held.discard(path)
            if lock is not None:
                lock.release()

    def describe(self, key: str, *, name: str, task: str, model: Mapping[str, Value]) -> None:
        """Write down for people what a key stands for; a disk that refuses changes nothing."""
        folder = self._path(key, "any").parent
        if folder.is_dir():
            write_description(folder, name=name, task=task, model=model)

    def _path(self, key: str, block: str) -> Path:
        for name in (key, block):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is not a digest, so it cannot name kept {self.what}")
        return self.current / key / f"{block}{BLOCK_SUFFIX}"

    @staticmethod
    def _in_folder(path: Path, write: Callable[[], Written]) -> Written:
        """Write into a folder that may be missing, or be removed as empty just now."""
        for last in (False, True):
            make_folder(path.parent)
            if path.parent.is_symlink():
                raise OSError(errno.ELOOP, _LINK)
            try:
                return write()
            except FileNotFoundError:
                if last:
                    raise
        raise AssertionError("the last try returns or raises")

    def _found(self, path: Path, key: str, block: str) -> Content | None:
        try:
            return self._read(path, key, block)
        except DamagedBlockError:
            return self._mended(path, key, block)

    def _read(self, path: Path, key: str, block: str) -> Content:
        data = read_sealed_bytes(path)
        try:
            return self.from_bytes(data, key, block)
        except _FORGERY_ERRORS as error:
            raise DamagedBlockError("it does not hold what it says") from error

    def _mended(self, path: Path, key: str, block: str) -> Content | None:
        """Set a damaged file aside, unless another process does that or makes it anew just now.

        Raises:
            OSError: as reading does.
        """
        with self.locked(key, block) as ours:
            if not ours:
                return None
            try:
                return self._read(path, key, block)
            except DamagedBlockError as error:
                outcome = set_aside(path)
                self._say(f"kept {self.what} {path} are not used: {error}; {outcome}; scored again")
        return None

    def _say(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _say_no_leases(self, error: OSError) -> None:
        if error.errno not in _SAID_BY_WRITING:
            self._say(
                f"{self.folder} takes no leases ({error.strerror or error}): another run at the "
                "same time may do the same work once more"
            )


def _mark_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        # a time to come is of a clock that has been put back since
        if abs(time.time() - path.lstat().st_mtime) > _USE_NOTED_EVERY:
            os.utime(path, follow_symlinks=False)


class ScoreCache(BlockCache[Sequence[Response]]):
    """Blocks of responses, by model and by requests."""

    what = "scores"

    def to_bytes(self, key: str, block: str, content: Sequence[Response]) -> memoryview:
        """Return the file of a block."""
        return block_to_bytes(key, block, content)

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Response]:
        """Read a file back."""
        return block_from_bytes(data, key, block)


DIVERGENCES = "evalguard.divergences/1"
REFERENCES = "evalguard.references/1"


class DivergenceCache(BlockCache[ComparedAnswer]):
    """How two models' distributions differ on finished blocks, by pair and by requests."""

    what = "divergences"

    def to_bytes(self, key: str, block: str, content: ComparedAnswer) -> memoryview:
        """Return the file of a block; the reason why there is nothing in it is kept too."""
        facts = {"format": DIVERGENCES, "key": key, "block": block}
        reason = json.dumps(content.reason)
        return records_to_bytes(content.divergences, {**facts, "reason": reason})

    def from_bytes(self, data: bytes, key: str, block: str) -> ComparedAnswer:
        """Read a file back."""
        divergences, facts = records_from_bytes(
            Divergence, data, {"format": DIVERGENCES, "key": key, "block": block}
        )
        return ComparedAnswer(divergences=tuple(divergences), reason=json.loads(facts["reason"]))


class ReferenceCache(BlockCache[Sequence[Reference | None]]):
    """References of finished blocks, by base and by requests."""

    what = "references"

    def to_bytes(self, key: str, block: str, content: Sequence[Reference | None]) -> memoryview:
        """Return the file of a block."""
        return records_to_bytes(content, {"format": REFERENCES, "key": key, "block": block})

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Reference | None]:
        """Read a file back."""
        facts = {"format": REFERENCES, "key": key, "block": block}
        return records_from_bytes(Reference, data, facts)[0]
