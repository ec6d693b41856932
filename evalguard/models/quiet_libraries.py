"""Keep libraries off stdout, which belongs to results, and their progress bars off the screen."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import partialmethod


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Send what libraries print to stderr, without their progress bars.

    Several threads may ask for it at the same time: the last one to leave puts all back.
    """
    with _silencing:
        if not _silent:
            stack = contextlib.ExitStack()
            stack.enter_context(_silence())
        else:
            stack = _silent[0]
        _silent.append(stack)
    try:
        yield
    finally:
        with _silencing:
            _silent.pop()
            if not _silent:
                stack.close()


_silencing = threading.Lock()
_silent: list[contextlib.ExitStack] = []  # once for each that wants it


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    from tqdm import tqdm  # type: ignore[import-untyped]
    from transformers.utils import logging

    shown, start = logging.is_progress_bar_enabled(), tqdm.__init__
    logging.disable_progress_bar()
    # lm-eval's model types show bars of their own, and have no switch that all of them know.
    tqdm.__init__ = partialmethod(start, disable=True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        tqdm.__init__ = start
        if shown:
            logging.enable_progress_bar()
