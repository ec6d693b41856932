"""Leases: one process of any machine makes a block, on file systems with and without locks.

``flock`` does on one machine: the kernel frees it with its process. On a network file system it may
be missing (ENOLCK), or count among the processes of one machine only (NFS mounted with
``local_lock``, Lustre with ``localflock``, BeeGFS as it comes): each machine would take itself for
the only one and do all the work. A lease needs no more than that a file gets a name which nothing
had: ``link``, atomic on a server for all its machines. Its owner touches the file while it lives.

Who finds a lease takes it over where its owner is dead: at once where that was a process of this
machine whose kernel lock is free, else after ``STALE_AFTER`` seconds without a touch. Both times
are the file system's own, so that clocks of machines may be apart. Two that take over at the same
instant, or an owner that was asleep for minutes, cost work that is done twice, and no more: every
block is written whole and by one rename.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from evalguard.store.atomic_files import HalfFile

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


BEAT_SECONDS = 20.0
# An NFS client may believe attributes for a minute, and a busy server may take one to answer.
STALE_AFTER = 180.0
_MOST_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease on ``path``, held until ``release``; the file is there only while one holds it."""

    path: Path
    _descriptor: int

    @classmethod
    def tried(cls, path: Path, *, machine: str | None = None) -> Lease | None:
        """Take the lease without waiting; None where another holds it, in this process too.

        Args:
            machine: whose processes the kernel's locks are known to cover; None: this one.

        Raises:
            OSError: the disk takes no file, or something else stands there.
        """
        machine = this_machine() if machine is None else machine
        # Looked at before anything is written: who waits for others looks often.
        with contextlib.suppress(FileNotFoundError):
            if not _remove_if_abandoned(path, machine):
                return None
        half = HalfFile(path)
        try:
            descriptor = os.dup(half.open().fileno())
            try:
                return cls._claimed(path, half, descriptor, machine)
            except BaseException:
                os.close(descriptor)
                raise
        except FileExistsError:
            return None
        finally:
            half.discard()

    @classmethod
    def _claimed(cls, path: Path, half: HalfFile, descriptor: int, machine: str) -> Lease:
        """Give a lease its name.

        Raises:
            FileExistsError: another has it.
        """
        locked = _take_kernel_lock(descriptor) is True
        owner = {"machine": machine, "pid": os.getpid(), "locked": locked}
        os.write(descriptor, json.dumps(owner).encode())
        for _ in range(_MOST_TRIES):
            if half.claim():
                _heartbeat.add(descriptor)
                return cls(path, descriptor)
            with contextlib.suppress(FileNotFoundError):  # released just now
                if not _remove_if_abandoned(path, machine):
                    raise FileExistsError(path)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def release(self) -> None:
        """Give the lease back, and remove its file unless that is another's by now."""
        _heartbeat.remove(self._descriptor)
        with contextlib.suppress(OSError):
            if is_still(self.path, self._descriptor):
                self.path.unlink()
        with contextlib.suppress(OSError):
            # A child that was forked meanwhile has the descriptor too: closing would not be enough.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def _remove_if_abandoned(path: Path, machine: str) -> bool:
    """Remove a lease whose owner is dead; whether there is none there any more.

    Raises:
        FileNotFoundError: there was none.
        OSError: it cannot be looked at, or not be removed.
    """
    descriptor = open_lock(path, create=False)
    try:
        # This holds its kernel lock, where there is one: of one machine's processes one removes it.
        abandoned = _is_abandoned(path, descriptor, machine)
        if abandoned and is_still(path, descriptor):
            path.unlink()
        return abandoned
    finally:
        os.close(descriptor)


def _is_abandoned(path: Path, descriptor: int, machine: str) -> bool:
    free = _take_kernel_lock(descriptor)
    if free is False:
        return False
    owner = _read_owner(descriptor)
    if free and owner.get("machine") == machine and owner.get("locked") is True:
        return True  # the kernel freed it
    return _file_system_time(path) - os.fstat(descriptor).st_mtime >= STALE_AFTER


def _take_kernel_lock(descriptor: int) -> bool | None:
    """Take a file's ``flock``; False where another has it, None where there are none here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _read_owner(descriptor: int) -> dict[str, object]:
    """What a lease says of its owner; nothing where it is none of this version's."""
    try:
        owner = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _file_system_time(path: Path) -> float:
    """What time it is for who keeps the files of a folder: of a server, its own clock's."""
    probe = HalfFile(path)
    try:
        return os.fstat(probe.open().fileno()).st_mtime
    finally:
        probe.discard()


@functools.cache
def this_machine() -> str:
    """Name of this machine since it was started: one kernel, whose locks hold among its own."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()


class _Heartbeat:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin with nothing: in a child that was forked, leases are its parent's."""
        self._lock = threading.Lock()
        self._descriptors: set[int] = set()
        self._thread: threading.Thread | None = None

    def add(self, descriptor: int) -> None:
        """Touch a lease from now on."""
        with self._lock:
            self._descriptors.add(descriptor)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()

    def remove(self, descriptor: int) -> None:
        """Touch it no more; its descriptor may be another file's as soon as this returns."""
        with self._lock:
            self._descriptors.discard(descriptor)

    def _run(self) -> None:
        never = threading.Event()
        while not never.wait(BEAT_SECONDS):
            with self._lock:
                for descriptor in self._descriptors:
                    with contextlib.suppress(OSError):  # it goes stale: work is done twice
                        os.utime(descriptor)


_heartbeat = _Heartbeat()
os.register_at_fork(after_in_child=_heartbeat.forget)
