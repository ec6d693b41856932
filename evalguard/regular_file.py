"""Files that somebody named: opened only where they are regular files.

A pipe waits for its other end, a device may never end, and opening one may do something.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NoRegularFileError(OSError):
    """What stands at a path cannot be read as a file; ``strerror`` says what it is."""

    def __init__(self, kind: str, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is neither a file nor a folder, before a library opens it.

    Raises:
        NoRegularFileError: a pipe, a socket, a device.
        OSError: nothing is there, or it may not be looked at.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, f"it is no path: {error}", os.fspath(path)) from error
    _refuse_others(mode, path)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        NoRegularFileError: a pipe, a socket, a device: none of them is opened, or waited for.
        OSError: as ``open`` does.
    """
    check_regular(path)
    return open(path, "rb", opener=_open_without_waiting)


def read_regular_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a regular file in UTF-8.

    Raises:
        NoRegularFileError, OSError: as ``open_regular``.
        UnicodeDecodeError: it is no UTF-8.
    """
    check_regular(path)
    with open(path, encoding="utf-8", opener=_open_without_waiting) as file:
        return file.read()


def is_special(path: Path) -> bool:
    """Whether a pipe, a socket or a device stands at a path."""
    try:
        check_regular(path)
    except NoRegularFileError:
        return True
    except OSError:
        return False
    return False


def _open_without_waiting(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:  # something else may stand there since it was looked at
        _refuse_others(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(mode: int, path: str | os.PathLike[str]) -> None:
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise NoRegularFileError(kind, path)
