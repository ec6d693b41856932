"""The program of a process of its own: it does the work that it is sent, until its parent ends."""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from evalguard.errors import EXIT_PASSED, Interrupted
from evalguard.worker.server import CallHandler, serve_calls

_PARENT_DEATH_SIGNAL = 1


def serve_work(desk: CallHandler, program: str, arguments: Sequence[str] | None = None) -> int:
    """Do work until the process that started this one closes; return the exit code."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--import-path", type=json.loads, required=True, metavar="JSON")
    parser.add_argument("--log-level", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    sys.path[:] = options.import_path
    faulthandler.enable()
    if options.log_level:
        logging.basicConfig(level=options.log_level, format="%(name)s: %(message)s")
    leave_signals_to_the_parent()
    try:
        serve_calls(options.requests, options.replies, desk)
    except KeyboardInterrupt:
        return Interrupted.exit_code
    return EXIT_PASSED


def leave_signals_to_the_parent() -> None:
    """Stop when the process that started this one says so, and die with it.

    One in the background may have had Ctrl-C ignored, which is inherited. systemd sends SIGTERM
    to every process of a unit: what it means for this work, its parent decides. (A handler and not
    SIG_IGN, which processes that are started from here would inherit.)
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _ignore_signal)
    if sys.platform == "linux":
        # A parent that is killed closes its pipe, which a thread here notices; one that is kept
        # from running by native code notices nothing. The parent waits in the thread that started
        # this process: it ends no sooner than the work.
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """A signal that was meant for the parent."""
