"""Files that are either whole or absent, and what to say when a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from evalguard.errors import StoreError, UsageError


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write ``data`` to ``path`` so that a reader sees the whole file or the previous one.

    Goes through a file of its own in the same folder, flushed to the disk and renamed; several
    processes may write the same path, and the last rename wins.

    Raises:
        OSError: nothing is left behind.
    """
    fill_atomically(path, lambda file: file.write(data))


def fill_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write to ``path`` what ``write`` puts into a file, likewise.

    Raises:
        OSError: nothing is left behind.
    """
    half = HalfFile(path)
    try:
        write(half.open())
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


_MOST_BYTES = 60
_ALLOWED = frozenset("._+=@,")


def safe_name(name: str) -> str:
    """Return ``name`` as part of a file name on any file system.

    Letters and digits of any script stay, other characters become "-" (slashes, blanks, control
    characters, lone surrogates); no dot or dash stands at an end, so "..", "." and hidden names
    cannot come out. At most 60 bytes of UTF-8, cut in the middle. "unnamed" if nothing is left.
    """
    text = unicodedata.normalize("NFC", name)
    spaced = "".join(c if c.isalnum() or c in _ALLOWED else " " for c in text)
    plain = "-".join(spaced.split()).strip(".-")
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
