"""Files that carry a digest of themselves, read only where they are whole.

Readers of binary formats are not made for damaged files: pyarrow ends the process at some of
them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from evalguard.core.settings import Value, digest_of
from evalguard.regular_file import open_regular
from evalguard.store.atomic_files import DamagedBlockError

_DIGEST_FIELD = "check"


def encode_line(record: Mapping[str, Value]) -> bytes:
    """Return a record as one line, with a digest of itself."""
    # Numbers that JSON has no word for are Python's (Infinity): only this module reads the line.
    line = json.dumps({**record, _DIGEST_FIELD: digest_of(dict(record))})
    return f"{line}\n".encode()


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return a line's record; None unless it is whole, and as it was written."""
    try:
        record = json.loads(line)
        check = record.pop(_DIGEST_FIELD)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if check == digest_of(record) else None


_MARK = b"evalguard-seal:"
_OPEN = b"0" * 64
_CHUNK = 2**20
UNSEALED = (_MARK + _OPEN).decode()
"""What a file holds somewhere in its last MiB until it is sealed."""


def seal(file: BinaryIO) -> None:
    """Put the digest of a whole file, open for reading and writing, in the place of ``UNSEALED``.

    Raises:
        OSError: the disk refuses.
        ValueError: there is no such place.
    """
    at, _ = _find_seal(file)
    digest = _digest(file, at)
    file.seek(at)
    file.write(digest)


def read_seal(path: Path) -> str | None:
    """Return a file's digest; None where it has none, or another one than it says.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return read_open_seal(file)


def is_sealed(file: BinaryIO) -> bool:
    """Whether a file open for reading holds the digest of all the rest of it."""
    return read_open_seal(file) is not None


def read_open_seal(file: BinaryIO) -> str | None:
    """Return the digest of a file open for reading, as ``read_seal`` does."""
    try:
        at, recorded = _find_seal(file)
    except ValueError:
        return None
    return recorded.decode() if recorded == _digest(file, at) else None


def _find_seal(file: BinaryIO) -> tuple[int, bytes]:
    """Where the digest stands, and what stands there."""
    start = max(0, file.seek(0, 2) - _CHUNK)
    file.seek(start)
    end = file.read()
    mark = end.rfind(_MARK)
    recorded = end[mark + len(_MARK) :][: len(_OPEN)]
    if mark < 0 or len(recorded) < len(_OPEN) or not recorded.isascii():
        raise ValueError("there is no place for a seal")
    return start + mark + len(_MARK), recorded


def _digest(file: BinaryIO, at: int) -> bytes:
    """SHA-256 of all but the digest at ``at``, in hexadecimal digits."""
    digest = hashlib.sha256()
    file.seek(0)
    remaining = at
    while remaining and (chunk := file.read(min(_CHUNK, remaining))):
        digest.update(chunk)
        remaining -= len(chunk)
    file.seek(at + len(_OPEN))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest().encode()


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
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise DamagedBlockError("a folder stands in its place")
        if not stat.S_ISREG(status.st_mode):
            raise DamagedBlockError("no ordinary file stands in its place")
        if status.st_size > MOST_READ_BYTES:
            raise DamagedBlockError("it is larger than a block can be")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MOST_READ_BYTES)
    finally:
        os.close(descriptor)
