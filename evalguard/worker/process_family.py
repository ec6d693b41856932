"""A process's family: its children, its stack, its memory, and how it ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import evalguard

if TYPE_CHECKING:
    import psutil


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
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else None


def _own_peak_memory() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


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


# A worker writes its stack to its log at this signal, also while native code holds the interpreter.
STACK_SIGNAL = signal.SIGUSR1
STACK_PATIENCE = 5.0
"""Seconds to wait for what a worker says; one that was stopped says nothing."""
_POLL_EVERY = 0.02
_COMPLETE_AFTER = 0.5  # seconds: on a loaded machine a stack is written in several pieces
_ASK_AGAIN_AFTER = (
    0.25  # seconds: while the main thread starts a process, one without a stack may be asked
)
_MOST_STACK_BYTES = 16_384  # bytes of a stack that are looked at; the innermost call comes first
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)\n', re.M)
_LIBRARY = re.compile(r"[/\\]python\d[.\d]*[/\\]|[/\\](site|dist)-packages[/\\]")
_Frame = re.Match[str]


def dump_stack_on_signal() -> None:
    """Let this process write the stack of its main thread to stderr when it is asked."""
    faulthandler.register(STACK_SIGNAL, all_threads=False)


def find_stuck_function(pid: int, log: Path, *, patience: float = STACK_PATIENCE) -> str:
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
        frames = _read_frames(pid, log, patience)
    except OSError:
        return ""
    frame = _find_user_frame(frames) or next(iter(frames), None)
    if frame is None:
        return ""
    shown = f"{frame['function']} ({frame['file']}, line {frame['line']})"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _read_frames(pid: int, log: Path, patience: float) -> list[_Frame]:
    """The frames that a log is longer by: until one of them is the user's, or no more come."""
    before, written = log.stat().st_size, b""
    frames: list[_Frame] = []
    now = asked = grown = time.monotonic()
    deadline = now + patience
    os.kill(pid, STACK_SIGNAL)
    while now < deadline:
        time.sleep(_POLL_EVERY)
        now, added = time.monotonic(), _read_after(log, before)
        if len(added) > len(written):
            written, grown = added, now
        frames = _frames(written)
        if _find_user_frame(frames) or (frames and now - grown > _COMPLETE_AFTER):
            break
        if not written and now - asked > _ASK_AGAIN_AFTER:
            os.kill(pid, STACK_SIGNAL)
            asked = now
    return frames


def _read_after(log: Path, start: int) -> bytes:
    with log.open("rb") as file:
        file.seek(start)
        return file.read(_MOST_STACK_BYTES)


def _frames(written: bytes) -> list[_Frame]:
    """Those that are written to the end of their line, the innermost first."""
    return list(_FRAME.finditer(written.decode("utf-8", "replace")))


def _find_user_frame(frames: list[_Frame]) -> _Frame | None:
    """The innermost one that is neither a library's nor evalguard's."""
    own = str(Path(evalguard.__file__).parent)
    for frame in frames:
        if not _LIBRARY.search(frame["file"]) and not frame["file"].startswith((own, "<")):
            return frame
    return None
