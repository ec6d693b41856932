"""How a worker ends when the process that started it is gone."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NoReturn

from evalguard.execution.family import kill_descendants


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
