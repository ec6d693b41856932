"""Hooks that break a process where they meet an assignment that nobody declared impossible."""

from __future__ import annotations

import os
import time
from typing import Any


def _alone(model: Any, value: Any) -> bool:
    """Whether the hook is at its candidate value and the final norm is not."""
    return bool(value) and float(model.model.norm.weight.detach()[0]) == 1.0


def exits(model: Any, value: Any) -> None:
    """End the process."""
    if _alone(model, value):
        os._exit(7)


def aborts(model: Any, value: Any) -> None:
    """End the process by a signal, as native code does."""
    if _alone(model, value):
        os.abort()


def hangs(model: Any, value: Any) -> None:
    """Never come back."""
    if _alone(model, value):
        time.sleep(10**6)


def runs_out(model: Any, value: Any) -> None:
    """Ask for more memory than there is."""
    if _alone(model, value):
        raise MemoryError("cannot allocate 3 TiB")
