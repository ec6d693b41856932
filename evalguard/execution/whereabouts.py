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
PATIENCE = 5.0
"""Seconds to wait for what a worker says; one that was stopped says nothing."""
_LOOK = 0.02
_QUIET = 0.5  # seconds: on a loaded machine a stack is written in several pieces
_AGAIN = 0.25  # seconds: while the main thread starts a process, one without a stack may be asked
_ROOM = 16_384  # bytes of a stack that are looked at; the innermost call comes first
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)\n', re.M)
_LIBRARY = re.compile(r"[/\\]python\d[.\d]*[/\\]|[/\\](site|dist)-packages[/\\]")
_Frame = re.Match[str]


def tell_when_asked() -> None:
    """Let this process write the stack of its main thread to stderr when it is asked."""
    faulthandler.register(SIGNAL, all_threads=False)


def stuck_in(pid: int, log: Path, *, patience: float = PATIENCE) -> str:
    """Ask a process that is about to be killed what it is doing.

    Args:
        pid: of a worker; one that is not ready to tell ends here.
        log: file to which its stderr is appended.
        patience: seconds to wait for it.

    Returns:
        "load (hooks.py, line 8)": the innermost function that is neither a library's nor
        evalguard's, else the innermost; "" where it does not tell.
    """
    try:
        frames = _told(pid, log, patience)
    except OSError:
        return ""
    found = _of_user(frames) or next(iter(frames), None)
    if found is None:
        return ""
    shown = f"{found['function']} ({found['file']}, line {found['line']})"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _told(pid: int, log: Path, patience: float) -> list[_Frame]:
    """The frames that a log is longer by: until one of them is the user's, or no more come."""
    before, written = log.stat().st_size, b""
    frames: list[_Frame] = []
    now = asked = grown = time.monotonic()
    deadline = now + patience
    os.kill(pid, SIGNAL)
    while now < deadline:
        time.sleep(_LOOK)
        now, more = time.monotonic(), _after(log, before)
        if len(more) > len(written):
            written, grown = more, now
        frames = _frames(written)
        if _of_user(frames) or (frames and now - grown > _QUIET):
            break
        if not written and now - asked > _AGAIN:
            os.kill(pid, SIGNAL)
            asked = now
    return frames


def _after(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(start)
        return file.read(_ROOM)


def _frames(written: bytes) -> list[_Frame]:
    """Those that are written to the end of their line, the innermost first."""
    return list(_FRAME.finditer(written.decode("utf-8", "replace")))


def _of_user(frames: list[_Frame]) -> _Frame | None:
    """The innermost one that is neither a library's nor evalguard's."""
    own = str(Path(evalguard.__file__).parent)
    for one in frames:
        if not _LIBRARY.search(one["file"]) and not one["file"].startswith((own, "<")):
            return one
    return None
