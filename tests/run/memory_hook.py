"""A hook that leaves room for one model; it opens a file, so that no score of it is kept."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import Any


def fills_the_memory(model: Any, value: Any) -> None:
    """Refuse a second model, whatever the value is."""
    held = os.open(
        f"{tempfile.gettempdir()}/evalguard-test-{os.getppid()}.lock", os.O_CREAT | os.O_RDWR
    )
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise MemoryError("there is room for one model") from None
