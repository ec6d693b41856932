"""A lock that one process holds and that the kernel frees when it dies, as kill -9 lets it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from evalguard.errors import StoreError, UsageError
from evalguard.store.seal import is_sealed, seal

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


# Damaged files: what one that is not what its place says is called, and where it goes.


DAMAGED_SUFFIX = ".damaged"


class DamagedBlockError(Exception):
    """A file is not the block that its place says; the message says in what way."""


def set_aside(path: Path) -> str:
    """Move what stands at ``path`` (file, link, folder) beside itself, and say where it is.

    Whatever was set aside from there before is overwritten where a file can be.
    """
    for name in (
        f"{path.name}{DAMAGED_SUFFIX}",
        f"{path.name}.{secrets.token_hex(4)}{DAMAGED_SUFFIX}",
    ):
        try:
            path.replace(path.with_name(name))
        except FileNotFoundError:
            return "it is gone"
        except OSError as error:
            cause = error.strerror or str(error)
        else:
            return f"set aside as {name}"
    return f"it stays where it is ({cause})"


# Files that are either whole or absent, and what to say when a disk refuses.


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write ``data`` to ``path`` so that a reader sees the whole file or the previous one.

    Goes through a file of its own in the same folder, flushed to the disk and renamed; several
    processes may write the same path, and the last rename wins.

    Raises:
        OSError: nothing is left behind.
    """
    half = HalfFile(path)
    try:
        half.open().write(data)
        half.commit()
    except BaseException:
        half.discard()
        raise


class HalfFile:
    """A file that is being written beside ``path``, under a name that tells what it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        own = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._partial = path.with_name(f".{path.name[:80]}.{own}.partial")
        self._file: BinaryIO | None = None

    def open(self) -> BinaryIO:
        """Make the file, for writing and reading.

        Raises:
            OSError: it cannot be made.
        """
        # open() instead of tempfile: the file gets the permissions that the user's umask gives.
        self._file = self._partial.open("x+b")
        return self._file

    def commit(self) -> None:
        """Flush the file to the disk and give it its name.

        Raises:
            OSError: the disk refuses; the file is still the half one.
        """
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self.path)

    def claim(self) -> bool:
        """Give the file its name unless something has it; whether it has it now.

        Its first name stays until ``discard``.

        Raises:
            OSError: the disk refuses.
        """
        assert self._file is not None
        # Where a server's answer was lost, the second try finds the name taken, by this file.
        with contextlib.suppress(FileExistsError):
            os.link(self._partial, self.path)
        return os.fstat(self._file.fileno()).st_nlink > 1

    def discard(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            self._partial.unlink()


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


def disk_error(doing: str, path: Path, error: OSError, *, hint: str) -> StoreError:
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
    """Return the part of ``path`` that exists and is not a folder; else ``path`` itself."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)


# Names of models and tasks as parts of file names.


_MOST_BYTES = 60
_ALLOWED = frozenset("._+=@,")


def safe_name(name: str) -> str:
    """Return ``name`` as part of a file name on any file system.

    Letters and digits of any script stay, other characters become "-" (slashes, blanks, control
    characters, lone surrogates); no dot or dash stands at an end, so "..", "." and hidden names
    cannot come out. At most 60 bytes of UTF-8, cut in the middle. "unnamed" if nothing is left.
    """
    text = unicodedata.normalize("NFC", name)
    kept = "".join(c if c.isalnum() or c in _ALLOWED else " " for c in text)
    plain = "-".join(kept.split()).strip(".-")
    return _shortened(plain) or "unnamed"


def number_names(name: str) -> Iterator[str]:
    """Yield ``name``, ``name-2``, ``name-3`` ... for a name that may be taken."""
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _shortened(text: str) -> str:
    data = text.encode()
    if len(data) <= _MOST_BYTES:
        return text
    half = (_MOST_BYTES - 2) // 2
    # A character that the cut goes through is dropped.
    head, tail = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{head.rstrip('.-')}--{tail.lstrip('.-')}"


# The floor store: what unchanged models showed, one file per model, task and environment.


_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
_FLOOR_HINT = (
    "--cache-dir FOLDER keeps floors elsewhere; --json > FILE and --floor FILE need no folder"
)


class FloorStore:
    """JSON documents in ``<folder>/<model>/<task>/<environment>.json``; the newest one stays.

    Attributes:
        problems: what could not be read so far, one message each, for the caller to show.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def get(self, model: str, task: str, environment: str) -> dict[str, Any] | None:
        """Return the document of a model, a task and an environment (their digests), or None."""
        return self._read(self._path(model, task, environment))

    def others(self, model: str, task: str, environment: str) -> Iterator[dict[str, Any]]:
        """Yield the documents of all other environments."""
        path = self._path(model, task, environment)
        for other in sorted(path.parent.glob("*.json")):
            found = self._read(other) if other != path else None
            if found is not None:
                yield found

    def put(self, model: str, task: str, environment: str, document: Mapping[str, Any]) -> Path:
        """Keep a document, and return its file.

        Raises:
            StoreError: it could not be written; what was there before still is.
        """
        path = self._path(model, task, environment)
        text = json.dumps(document, allow_nan=False, indent=2) + "\n"
        try:
            make_folder(path.parent)
            write_atomically(path, text.encode())
        except OSError as error:
            raise disk_error("keep a floor in", path.parent, error, hint=_FLOOR_HINT) from error
        return path

    def _path(self, model: str, task: str, environment: str) -> Path:
        for name in (model, task, environment):
            if not _NAME.fullmatch(name):
                raise StoreError(f"'{name}' is not a digest, so it cannot name a floor")
        return self.folder / model / task / f"{environment}.json"

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):  # no cache can be where a file is
            return None
        except OSError as error:
            self.problems.append(f"the floor {path} cannot be read: {error.strerror or error}")
            return None
        except (ValueError, RecursionError) as error:
            self.problems.append(f"the floor {path} is not used: it is not JSON ({error})")
            return None
        if not isinstance(content, dict):
            self.problems.append(f"the floor {path} is not used: it is not a JSON object")
            return None
        return content


# A file that the user named for a result.


_OUTPUT_HINT = "give -o a file in a folder that is there and may be written to"


def check_output(path: Path) -> None:
    """Refuse a file that cannot be written, before anything long runs.

    Raises:
        UsageError: it is a folder, or its folder is not there or may not be written to.
    """
    path = path.expanduser()
    if path.is_dir():
        raise UsageError(f"-o {path}: this is a folder", hint=_OUTPUT_HINT)
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"-o {path}: there is no folder {folder}", hint=_OUTPUT_HINT)
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"-o {path}: no write permission", hint=_OUTPUT_HINT)


def write_output(path: Path, text: str) -> None:
    """Write it: whole or not at all, or, into what is no ordinary file, as far as that takes it.

    A link stays, and what it leads to is written.

    Raises:
        StoreError: it cannot be written; an ordinary file that was there is still there.
    """
    path = path.expanduser()
    try:
        if path.exists() and not path.is_file():  # a pipe or a device: nothing may take its place
            path.write_text(text, encoding="utf-8")
        else:
            write_atomically(Path(os.path.realpath(path)), text.encode())
    except OSError as error:
        raise disk_error("write", path, error, hint=_OUTPUT_HINT) from error


# Kept files as bytes: only what is an ordinary file, of a size that can be, and sealed.


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
