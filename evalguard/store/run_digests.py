"""The files beside a result.json, held against the digests that it names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from evalguard.errors import StoreError
from evalguard.regular_file import open_regular

_CHUNK = 2**20
_DIGEST_HINT = (
    "take the whole run folder from where it was made, or compare again; do not edit its files"
)


def check_run_file(folder: Path, file: Path, digests: Mapping[str, str] | None) -> None:
    """Refuse a file of a run folder that is not what it was when the result was written.

    Args:
        digests: SHA-256 in hexadecimal digits, by a file's path in ``folder``; None where the
            result names none: an earlier version wrote it, and nothing is checked.

    Raises:
        StoreError: the file has another digest, or none, or cannot be read.
    """
    if digests is None:
        return
    told = digests.get(file.relative_to(folder).as_posix())
    if told is None:
        raise StoreError(
            f"{file} is not of this run: its result.json names no such file", hint=_DIGEST_HINT
        )
    try:
        found = digest_file(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}", hint=_DIGEST_HINT) from error
    if found != told:
        raise StoreError(
            f"{file} is not as evalguard wrote it: its SHA-256 is '{found[:16]}'..., and "
            f"result.json says '{told[:16]}'...",
            hint=_DIGEST_HINT,
        )


def digest_file(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(file) as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
