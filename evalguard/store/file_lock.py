"""A lock that one process holds and that the kernel frees when it dies, as kill -9 lets it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

# filelock takes every error of flock for "another process holds it", and would wait for ever on a
# file system without locks; and it leaves a file behind for every block.
_MOST_TRIES = 100


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on ``path``, held until ``release``; the file is there only while one holds it."""

    path: Path
    _descriptor: int

    @classmethod
    def tried(cls, path: Path) -> FileLock | None:
        """Take the lock without waiting; None where another holds it, in this process too.

        Raises:
            OSError: there are no locks here, or the disk takes no file.
        """
        for _ in range(_MOST_TRIES):
            descriptor = open_lock(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            if is_still(path, descriptor):
                return cls(path, descriptor)
            os.close(descriptor)  # who held it removed the file before this process had the lock
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def release(self, *, remove: bool = True) -> None:
        """Free the lock, and remove its file, which nobody else may do meanwhile."""
        with contextlib.suppress(OSError):
            if remove and is_still(self.path, self._descriptor):
                self.path.unlink()
        with contextlib.suppress(OSError):
            # A child that was forked meanwhile has the descriptor too: closing would not be enough.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def open_lock(path: Path, *, create: bool = True) -> int:
    """Open a lock's file, and make it where it is missing, if that is meant; a descriptor.

    Raises:
        OSError: a link stands there, or the disk refuses.
    """
    # Neither through a link nor waiting for the other end of a pipe that somebody put there.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        return os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:
        # Another user's, in a folder that a group shares: it can be locked, if not written.
        return os.open(path, flags & ~os.O_CREAT | os.O_RDONLY)


def is_still(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one that stands at ``path``."""
    ours = os.fstat(descriptor)
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
