"""Damaged files: what one that is not what its place says is called, and where it goes."""

from __future__ import annotations

import secrets
from pathlib import Path

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
