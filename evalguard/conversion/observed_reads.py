"""Digests of files and folders, each file read once while it does not change."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from evalguard.core.settings import digest_of
from evalguard.core.split_files import parse_weight_map
from evalguard.regular_file import read_regular_text

# Below this a file is read faster than it is looked up.
_BIG = 2**20
# A file that changes twice within one tick of a file system's clock keeps its times; the coarsest
# clock in use has ticks of two seconds (FAT). Git takes the same care ("racy git").
SETTLED_NS = 2_000_000_000


class KnownDigests(Protocol):
    """Digests of files that outlive the process."""

    def get(self, path: str, state: Sequence[int]) -> str | None:
        """Return the digest of a file that is still in this state, or None."""

    def put(self, path: str, state: Sequence[int], digest: str) -> None:
        """Remember a file's digest."""


def digest_path(path: Path, known: KnownDigests | None = None) -> str:
    """SHA-256 over a file's content, or over names and contents of all files in a folder.

    Hidden files and folders are left out, as are compiled Python files. Symbolic links count as
    what they point to, so that a hub snapshot has the digest of its files.

    Args:
        known: digests of big files from earlier processes.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if path.is_file():
        return _digest_file(path, known)
    if not path.is_dir():
        raise FileNotFoundError(path)
    whole = hashlib.sha256()
    for file in sorted(_files(path)):
        inner = file.relative_to(path)
        whole.update(f"{inner.as_posix()}\0{_digest_file(file, known)}\n".encode())
    return whole.hexdigest()


def digest_model(path: Path, known: KnownDigests | None = None) -> str:
    """Digest of a model file or folder, and of weights that an index names elsewhere.

    That is: in hidden folders, or out of its sight (``../shared/model-1.safetensors``).
    """
    digest = digest_path(path, known)
    elsewhere = [
        [name, digest_path(path / name, known)] for name in sorted(set(_weights_elsewhere(path)))
    ]
    return digest_of([digest, *elsewhere]) if elsewhere else digest


def _weights_elsewhere(folder: Path) -> Iterator[str]:
    for index in folder.rglob("*.index.json") if folder.is_dir() else ():
        try:
            names = set(parse_weight_map(read_regular_text(index)).values())
        except (OSError, ValueError):
            continue  # whoever loads it will say so
        for name in (Path(os.path.relpath(index.parent, folder), name) for name in names):
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if (hidden or name.is_absolute()) and (folder / name).is_file():
                yield str(name)


def _files(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Files of a folder and of all folders in it, links to folders too, each way in once."""
    here = os.path.realpath(folder)
    if here in above:  # a link back to where we are
        return
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path, above | {here})
        elif path.is_file():
            yield path


_CODE_SUFFIXES = (
    ".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".dll", ".dylib", ".egg", ".h", ".hpp", ".pth",
    ".py", ".pyc", ".pyd", ".pyx", ".sh", ".so", ".whl", ".zip",
)  # fmt: skip


def digest_content(path: Path, *, code: bool = False) -> str:
    """SHA-256 over all that is in a file or folder now, by relative path; nothing is remembered.

    Unlike of a model's folder, hidden files count, and so does the name of every folder.

    Args:
        code: of a folder, only files of code count, and not those of environments and caches.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if path.is_file():
        return _digest_content(str(path))
    if not path.is_dir():
        raise FileNotFoundError(path)
    whole = hashlib.sha256()
    for inner, file in sorted(_contents(path, "", frozenset(), code)):
        content = "" if file is None else _digest_content(file)
        whole.update(f"{inner}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def _contents(
    folder: Path, above: str, parents: frozenset[str], code: bool
) -> Iterator[tuple[str, str | None]]:
    """Every file in a folder, by its path from there; None stands for a folder."""
    here = os.path.realpath(folder)
    if here in parents:  # a link back to where we are
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            inner = f"{above}{entry.name}"
            if entry.is_dir():
                if code and _is_no_code(entry):
                    continue
                if not code:
                    yield f"{inner}/", None
                yield from _contents(Path(entry.path), f"{inner}/", parents | {here}, code)
            elif entry.is_file() and (not code or entry.name.endswith(_CODE_SUFFIXES)):
                yield inner, entry.path


def _is_no_code(folder: os.DirEntry[str]) -> bool:
    named = folder.name.startswith(".") or folder.name in _NO_CODE
    # An environment; a cache of evalguard's, in which models are built.
    marks = ("pyvenv.cfg", "facts/v1")
    return named or any(os.path.exists(os.path.join(folder.path, mark)) for mark in marks)


_NO_CODE = ("__pycache__", "node_modules", "site-packages", "transformers_modules")


class _FileState(NamedTuple):
    """What changes with a file's content; the time of the last change of state cannot be set."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, path: str) -> _FileState:
        # Network file systems ask their server when a file is opened; a look at it alone may show
        # what it was a minute ago.
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
        return cls(
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        )


def _digest_file(path: Path, known: KnownDigests | None) -> str:
    resolved = str(path.resolve())
    state = _FileState.of(resolved)
    if max(state.modified_ns, state.changed_ns) >= time.time_ns() - SETTLED_NS:
        return _digest_content(resolved)
    if known is None or state.size < _BIG:
        return _digest_settled(resolved, state)
    digest = known.get(resolved, state)
    if digest is None:
        digest = _digest_settled(resolved, state)
        if _FileState.of(resolved) == state:
            known.put(resolved, state, digest)
    return digest


@lru_cache(maxsize=4096)
def _digest_settled(path: str, state: _FileState) -> str:  # noqa: ARG001 - part of the key
    return _digest_content(path)


def _digest_content(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
