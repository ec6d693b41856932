"""Keep libraries off stdout, which belongs to results, and their progress bars off the screen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partialmethod


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what libraries print to stderr, without their progress bars."""
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
