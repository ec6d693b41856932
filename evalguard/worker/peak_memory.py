"""Peak memory of a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def peak_memory(pid: int | None = None) -> int | None:
    """Largest resident set of a running process so far, in bytes; None where it is not known.

    On Linux that of its present program: what ``getrusage`` gives includes the process that it
    was started from, which shared its memory until then.

    Args:
        pid: the process; None: this one, which other systems tell about, too.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8")
    except OSError:
        return _own_peak_memory() if pid is None else None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def _own_peak_memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
