"""A seal: a file's digest within itself, so that a single changed bit shows before it is parsed.

Readers of binary formats are not made for damaged files: pyarrow ends the process at some of
them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from evalguard.regular_file import open_regular

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
        at, said = _find_seal(file)
    except ValueError:
        return None
    return said.decode() if said == _digest(file, at) else None


def _find_seal(file: BinaryIO) -> tuple[int, bytes]:
    """Where the digest stands, and what stands there."""
    start = max(0, file.seek(0, 2) - _CHUNK)
    file.seek(start)
    end = file.read()
    mark = end.rfind(_MARK)
    said = end[mark + len(_MARK) :][: len(_OPEN)]
    if mark < 0 or len(said) < len(_OPEN) or not said.isascii():
        raise ValueError("there is no place for a seal")
    return start + mark + len(_MARK), said


def _digest(file: BinaryIO, at: int) -> bytes:
    """SHA-256 of all but the digest at ``at``, in hexadecimal digits."""
    digest = hashlib.sha256()
    file.seek(0)
    left = at
    while left and (chunk := file.read(min(_CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    file.seek(at + len(_OPEN))
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest().encode()
