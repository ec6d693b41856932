"""Keep libraries off stdout, which belongs to results, and their progress bars off the screen."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what libraries print to stderr, without transformers' progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()
