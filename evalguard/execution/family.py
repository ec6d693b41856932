"""A process's family: everything that it started, in whatever session."""

from __future__ import annotations

import contextlib


def kill_descendants(pid: int) -> None:
    """Kill every process that a running process has started, itself excepted.

    A process group is not enough: model workers and build recipes have sessions of their own.
    """
    import psutil

    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return
    for child in family:
        with contextlib.suppress(psutil.Error):  # it is gone already
            child.kill()
