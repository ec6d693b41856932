"""Digests of files and folders, each file read once per process while it does not change."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


def digest_path(path: Path) -> str:
    """SHA-256 over a file's content, or over names and contents of all files in a folder.

    Hidden files and folders are left out, as are compiled Python files. Symbolic links count as
    what they point to, so that a hub snapshot has the digest of its files.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if path.is_file():
        return _digest_file(path)
    if not path.is_dir():
        raise FileNotFoundError(path)
    whole = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        inner = file.relative_to(path)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
        if not hidden and file.is_file():
            whole.update(f"{inner.as_posix()}\0{_digest_file(file)}\n".encode())
    return whole.hexdigest()


def _digest_file(path: Path) -> str:
    status = path.stat()
    return _digest_content(_FileState(str(path.resolve()), status.st_size, status.st_mtime_ns))


class _FileState(NamedTuple):
    path: str
    size: int
    modified_ns: int


@lru_cache(maxsize=4096)
def _digest_content(state: _FileState) -> str:
    digest = hashlib.sha256()
    with open(state.path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
