"""Records and activations in pieces that each fit into one message."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import cut, join_positions
from evalguard.errors import WorkerError
from evalguard.worker.messages import ActivationPart

R = TypeVar("R")
# Base64 makes a third more of it; a message may hold 256 MiB.
MOST_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class RecordChunks(Generic[R]):
    """Records of requests, cut anew: ``lengths`` are the positions of each request, 0 for None."""

    lengths: tuple[int, ...]
    pieces: tuple[R, ...]

    @classmethod
    def of(cls, records: Sequence[R | None]) -> RecordChunks[R]:
        """Pack records; one request's positions may be spread over several pieces."""
        present = [record for record in records if record is not None and _count_positions(record)]
        lengths = tuple(0 if record is None else _count_positions(record) for record in records)
        if not present:
            return cls(lengths, ())
        whole = join_positions(present)
        total = sum(lengths)
        step = max(1, MOST_BYTES * total // _count_bytes(whole))
        sizes = [min(step, total - start) for start in range(0, total, step)]
        return cls(lengths, tuple(cut(whole, sizes)))


def join_chunks(lengths: Sequence[int], pieces: Sequence[R]) -> list[R | None]:
    """Return the records that were packed.

    Raises:
        WorkerError: if the pieces do not add up to the lengths.
    """
    if sum(lengths) != sum(map(_count_positions, pieces)):
        raise WorkerError("sent other positions than it announced")
    if not pieces:
        return [None for _ in lengths]
    chunks = iter(cut(join_positions(pieces), [length for length in lengths if length]))
    return [next(chunks) if length else None for length in lengths]


def _arrays_of(record: object) -> list[np.ndarray]:
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    values = (getattr(record, field.name) for field in fields)
    return [value for value in values if isinstance(value, np.ndarray)]


def _count_positions(record: object) -> int:
    return int(_arrays_of(record)[0].shape[0])


def _count_bytes(record: object) -> int:
    return sum(value.nbytes for value in _arrays_of(record))


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
