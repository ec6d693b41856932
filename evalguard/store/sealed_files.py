"""Kept files as bytes: only what is an ordinary file, of a size that can be, and sealed."""

from __future__ import annotations

import errno
import os
import stat
from io import BytesIO
from pathlib import Path

from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.seal import is_sealed, seal

# Whatever says that it is larger was not written by evalguard.
MOST_READ_BYTES = 2**32
_NO_FILE = {
    errno.ELOOP: "a link stands in its place",
    errno.EMLINK: "a link stands in its place",
    errno.ENXIO: "no ordinary file stands in its place",
    errno.EACCES: "it may not be read",
    errno.EPERM: "it may not be read",
}


def read_sealed_bytes(path: Path) -> bytes:
    """Return the bytes of a file that nothing changed since ``seal_bytes`` made them.

    Raises:
        FileNotFoundError: there is none.
        DamagedBlockError: something else stands there, or the file was cut or changed.
        OSError: the disk fails.
    """
    data = _read(path)
    if not data:
        raise DamagedBlockError("it is empty")
    if not is_sealed(BytesIO(data)):
        raise DamagedBlockError("it is cut, was changed, or was not written by evalguard")
    return data


def seal_bytes(data: bytes | memoryview) -> memoryview:
    """Return a file's bytes, which hold ``UNSEALED``, with the digest of all of them in place."""
    file = BytesIO(data)
    seal(file)
    return memoryview(file.getvalue())  # no copy; a buffer of the file would outlive it


def _read(path: Path) -> bytes:
    try:
        # A pipe would be waited for, a link lead anywhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise DamagedBlockError(_NO_FILE[error.errno]) from error
        raise
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise DamagedBlockError("a folder stands in its place")
        if not stat.S_ISREG(found.st_mode):
            raise DamagedBlockError("no ordinary file stands in its place")
        if found.st_size > MOST_READ_BYTES:
            raise DamagedBlockError("it is larger than a block can be")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MOST_READ_BYTES)
    finally:
        os.close(descriptor)
