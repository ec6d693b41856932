"""Whereabouts: in which function a worker is stuck, which is what its user has to look at."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from pathlib import Path

import evalguard

# A worker writes its stack to its log at this signal, also while native code holds the interpreter.
SIGNAL = signal.SIGUSR1
_PATIENCE = 2.0  # seconds: a worker that was stopped says nothing
_LOOK = 0.02
_ROOM = 16_384  # bytes of a stack that are looked at; the innermost call comes first
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)
_LIBRARY = re.compile(r"[/\\]python\d[.\d]*[/\\]|[/\\](site|dist)-packages[/\\]")


def tell_when_asked() -> None:
    """Let this process write the stack of its main thread to stderr when it is asked."""
    faulthandler.register(SIGNAL, all_threads=False)


def stuck_in(pid: int, log: Path) -> str:
    """Ask a process that is about to be killed what it is doing.

    Args:
        pid: of a worker; one that is not ready to tell ends here.
        log: file to which its stderr is appended.

    Returns:
        "load (hooks.py, line 8)": the innermost function that is neither a library's nor
        evalguard's, else the innermost; "" where it does not tell.
    """
    try:
        before = log.stat().st_size
        os.kill(pid, SIGNAL)
        written = _appended(log, before)
    except OSError:
        return ""
    frames = list(_FRAME.finditer(written))
    own = str(Path(evalguard.__file__).parent)
    of_user = (
        one
        for one in frames
        if not _LIBRARY.search(one["file"]) and not one["file"].startswith((own, "<"))
    )
    found = next(of_user, frames[0] if frames else None)
    if found is None:
        return ""
    shown = f"{found['function']} ({found['file']}, line {found['line']})"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _appended(log: Path, before: int) -> str:
    """What a log is longer by, as soon as it grows no more."""
    deadline = time.monotonic() + _PATIENCE
    seen = before
    while time.monotonic() < deadline:
        time.sleep(_LOOK)
        size = log.stat().st_size
        if before < size == seen:
            break
        seen = size
    with log.open("rb") as file:
        file.seek(before)
        return file.read(_ROOM).decode("utf-8", "replace")
