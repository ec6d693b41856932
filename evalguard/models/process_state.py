"""What is one for the whole process: threads of torch, seeds, chatter of libraries."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


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
    held = vars(tqdm)["__init__"]  # a descriptor, which gives another function each time

    def without_bar(self: Any, *given: Any, **named: Any) -> None:
        start(self, *given, **{**named, "disable": True})  # whatever its caller says of that

    logging.disable_progress_bar()
    # lm-eval's model types show bars of their own, and have no switch that all of them know.
    tqdm.__init__ = without_bar
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        tqdm.__init__ = held
        if shown:
            logging.enable_progress_bar()


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """Seed every generator that sampling may use, and give the caller's states back."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    devices = range(cuda.device_count()) if cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        # torch.manual_seed would note down for a GPU that nobody uses where it was called from.
        if cuda.is_initialized():
            cuda.manual_seed_all(seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Let torch use so many threads for a while; 0: as many as it uses now.

    Every model brings its own number, so that it computes the same beside another one as alone.
    """
    import torch

    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
