"""Files that are either whole or absent, and what to say when a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from evalguard.errors import StoreError


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write ``data`` to ``path`` so that a reader sees the whole file or the previous one.

    Goes through a file of its own in the same folder, flushed to the disk and renamed; several
    processes may write the same path, and the last rename wins.

    Raises:
        OSError: nothing is left behind.
    """
    partial = path.with_name(f".{path.name[:80]}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        # open() instead of tempfile: the file gets the permissions that the user's umask gives.
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its parents where they are missing.

    Raises:
        OSError: also where a file has this name.
    """
    folder.mkdir(parents=True, exist_ok=True)


def make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its parents where they are missing, for this user alone.

    Raises:
        OSError: also where a file has this name.
    """
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        make_private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def refusal(doing: str, path: Path, error: OSError, *, hint: str) -> StoreError:
    """Return a StoreError that says in plain words why the disk refused."""
    return StoreError(f"cannot {doing} {path}: {_cause(path, error)}", hint=hint)


def _cause(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no write permission"
    if error.errno == errno.EROFS:
        return "the file system is read-only"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{_file_on_the_way(path)} is a file, not a folder"
    return error.strerror or str(error)


def _file_on_the_way(path: Path) -> Path:
    """Return the part of ``path`` that exists and is no folder; else ``path`` itself."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)
