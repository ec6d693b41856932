"""Which documents share a passage: clusters of unequal size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.differences import Rng

SIZES_OF_CLUSTERS = ("geometric sizes", "one giant cluster of 30%")
_MEAN_SIZE = 5


def draw_members(shape: str, count: int, rng: Rng) -> NDArray[np.int64]:
    """The cluster of every document: ``count`` clusters of about five documents each."""
    sizes = rng.geometric(1.0 / _MEAN_SIZE, count)
    if shape == "one giant cluster of 30%":
        sizes[0] = max(1, round(0.3 / 0.7 * float(sizes[1:].sum())))
    return np.repeat(np.arange(count), sizes)
