"""A file that the user named for a result."""

from __future__ import annotations

import os
from pathlib import Path

from evalguard.errors import UsageError
from evalguard.store.atomic_files import disk_error, write_atomically

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
