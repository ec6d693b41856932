"""A process's family: everything that it started, in whatever session, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import psutil


def kill_descendants(pid: int, *, beside: Iterable[psutil.Process] = ()) -> None:
    """Kill every process that a running process has started, itself excepted.

    A process group is not enough: model workers and build recipes have sessions of their own.

    Args:
        beside: others to kill, found before: those whose parent has ended are nobody's.
    """
    import psutil

    for child in (*beside, *find_descendants(pid)):
        with contextlib.suppress(psutil.Error):  # it is gone already
            child.kill()


def find_descendants(pid: int) -> list[psutil.Process]:
    """Every process that a running process has started, itself excepted."""
    import psutil

    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def end_process_group(reason: str) -> NoReturn:
    """End this worker at once, with every process that it started; log why.

    For a worker that cannot reach its parent any more: nobody will read what it would compute.
    (The kernel's parent-death signal would not do: it comes when the *thread* that started the
    worker ends.)
    """
    with contextlib.suppress(OSError):  # where its messages went is gone, too
        os.write(2, f"evalguard worker {os.getpid()} ends: {reason}\n".encode())
    kill_descendants(os.getpid())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
