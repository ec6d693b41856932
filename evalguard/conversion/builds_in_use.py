"""Builds in use: what keeps a model that this process may read from being cleared out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

# Held until this process ends: a model may read its files at any time. Several processes hold one
# build: a shared lock, which filelock has in late versions only, as a database.
_held: dict[Path, int] = {}


def mark_used(entry: Path) -> None:
    """Hold a build, beside any other process that uses it, and say that it was used now.

    ``<entry>.used`` is locked; on a disk without locks, or that refuses, nothing is.
    """
    with contextlib.suppress(OSError):
        os.utime(entry, follow_symlinks=False)
    if entry in _held:
        return
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(entry.with_name(f"{entry.name}.used"), flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        _held[entry] = descriptor


def clear_unused(builds: Path, digest: str) -> None:
    """Remove what runs that ended built of a recipe that every run builds."""
    for entry in builds.glob(f"{digest}-{'[0-9a-f]' * 16}"):
        used = entry.with_name(f"{entry.name}.used")
        with contextlib.suppress(OSError), used.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry)
