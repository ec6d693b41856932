"""Activations: values at points, in parts that each fit into one message."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from evalguard.worker.messages import (
    ActivationPart,
)
from evalguard.worker.record_chunks import MOST_BYTES


class UnfitPartError(Exception):
    """A part that does not go on where the one before it ended."""


def cut_activations(
    found: Iterator[tuple[str, NDArray[np.float32]]],
) -> Generator[ActivationPart]:
    """Cut the values at points into parts of at most ``MOST_BYTES``."""
    try:
        for point, value in found:
            flat = value.reshape(-1)
            step = max(1, MOST_BYTES // flat.itemsize)
            for start in range(0, max(flat.size, 1), step):
                yield ActivationPart(
                    point=point, shape=value.shape, start=start, values=flat[start : start + step]
                )
    finally:
        if isinstance(found, Generator):
            found.close()


def join_activations(
    next_part: Callable[[], ActivationPart | None],
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Put parts together again; the inverse of ``cut_activations``.

    Raises:
        UnfitPartError: a part is missing, or of another point.
    """
    while (part := next_part()) is not None:
        whole = np.empty(math.prod(part.shape), dtype=np.float32)
        point, shape, filled = part.point, part.shape, 0
        while True:
            end = filled + part.values.size
            if (part.point, part.shape, part.start) != (point, shape, filled) or end > whole.size:
                raise UnfitPartError(f"sent a part of {part.point} that does not fit {point}")
            whole[filled:end] = part.values
            filled = end
            if filled == whole.size:
                break
            following = next_part()
            if following is None:
                raise UnfitPartError(f"ended within {point}")
            part = following
        yield point, whole.reshape(shape)
