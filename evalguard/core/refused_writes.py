"""What the Hugging Face libraries could not write, told as no fault of a model."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping

HF_HINT = "HF_HOME=FOLDER names another place for what the Hugging Face libraries keep"

_REFUSED = {
    errno.EACCES: "no write permission",
    errno.EPERM: "no write permission",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
}
# A home folder that does not exist. Elsewhere these say that a file is missing.
_NO_HOME = (errno.ENOENT, errno.ENOTDIR)


def unwritable(error: BaseException, environment: Mapping[str, str]) -> str | None:
    """Return what could not be written in Hugging Face's folder, and why; None for anything else.

    Args:
        error: its causes are looked at, too.
        environment: variables of the process.
    """
    for cause in _causes(error):
        if not isinstance(cause, OSError) or not isinstance(cause.filename, str):
            continue
        if not any(_lies_in(cause.filename, home) for home in _homes(environment)):
            continue
        if cause.errno in _REFUSED or cause.errno in _NO_HOME:
            why = _REFUSED.get(cause.errno) or cause.strerror or str(cause)
            return f"{cause.filename} cannot be written: {why}"
    return None


def _lies_in(path: str, folder: str) -> bool:
    ending = folder.rstrip("/\\")
    return path == ending or path.startswith((f"{ending}/", f"{ending}\\"))


def _homes(variables: Mapping[str, str]) -> list[str]:
    """Where the libraries keep things, as they look it up."""
    cache = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
    named = [variables.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")]
    return [f"{cache}/huggingface", *(name for name in named if name)]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
