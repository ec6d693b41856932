"""Generators of random numbers, seeded for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    pass


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
