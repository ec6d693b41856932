"""The process that compares pairs: ``python -m evalguard.pipeline.nightly.pair_worker``.

Started by ``pair_process``, not by people. A pair that hangs, or that takes its process down, takes
only this one; the night goes on with another.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, cast

from evalguard.errors import EXIT_PASSED, Interrupted
from evalguard.execution.messages import Call
from evalguard.execution.server import serve_desk
from evalguard.garbage import keep_what_is_there, leave_the_rest, look_seldom
from evalguard.night_report import PairNight
from evalguard.pipeline.nightly.pair_work import PairWork
from evalguard.pipeline.nightly.told_pair import told_pair
from evalguard.settings import Value

_PARENT_DEATH_SIGNAL = 1


class PairDesk:
    """Compares pairs and bisects them, as it is asked to."""

    def answer(self, call: Call) -> Value:
        """Return what the pair came to.

        Raises:
            KeyboardInterrupt: the night is stopped, or this pair's time is up.
        """
        if call.name == "close":
            return None
        try:
            return told_pair(_done(PairWork.read(cast("dict[str, Any]", call.argument))))
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            keep_what_is_there()

    def close(self) -> None:
        """Nothing is held between two pairs."""


def _done(work: PairWork) -> PairNight:
    # Not before it is needed: the night waits for a hello.
    from evalguard.pipeline.nightly.pair_run import bisected_pair, verdict_of

    if work.verdict is None:
        return verdict_of(work.base, work.candidate, work.options)
    return bisected_pair(work.verdict, work.options, work.cwd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the night until it closes; return the exit code."""
    parser = argparse.ArgumentParser(prog="evalguard.pipeline.nightly.pair_worker")
    parser.add_argument("--requests", type=int, required=True, metavar="FD")
    parser.add_argument("--replies", type=int, required=True, metavar="FD")
    parser.add_argument("--import-path", type=json.loads, required=True, metavar="JSON")
    parser.add_argument("--log-level", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    sys.path[:] = options.import_path
    faulthandler.enable()
    if options.log_level:
        logging.basicConfig(level=options.log_level, format="%(name)s: %(message)s")
    leave_signals_to_the_night()
    try:
        serve_desk(options.requests, options.replies, PairDesk())
    except KeyboardInterrupt:
        return Interrupted.exit_code
    return EXIT_PASSED


def leave_signals_to_the_night() -> None:
    """Stop when the night says so, and die with it.

    A night in the background may have had Ctrl-C ignored, which is inherited. systemd sends SIGTERM
    to every process of a unit: what it means for this pair, the night decides. (A handler and not
    SIG_IGN, which processes that are started from here would inherit.)
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _ignored)
    if sys.platform == "linux":
        # A night that is killed closes its pipe, which a thread here notices; one that is kept from
        # running by native code notices nothing. The night waits in the thread that started this
        # process: it ends no sooner than the night.
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _ignored(number: int, frame: FrameType | None) -> None:
    """A signal that was meant for the night."""


if __name__ == "__main__":
    look_seldom()
    try:
        sys.exit(main())
    finally:
        leave_the_rest()
