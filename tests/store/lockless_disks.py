"""File systems that have no locks."""

from __future__ import annotations

import errno


def no_flock(descriptor: int, how: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")
