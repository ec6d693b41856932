"""What distributions at a prompt's scored positions are reduced to, where they are computed.

Rows of log-probabilities are large: V numbers a position. They are reduced as they come, part by
part, to what is asked of them: a reference to keep, or the divergence from references that were
kept. numpy is all that this imports, so that it runs inside an engine's own process; torch where
rows are on a device.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import (
    Divergence,
    Reference,
    cut,
    divergence_from,
    join_positions,
    reference,
)
from evalguard.core.logprob_rows import HostRows, LogprobRows

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepReference:
    """A reference is to be kept of a prompt.

    Attributes:
        top_k, samples: as of ``core.reference.reference``.
        seed: of the draws; see ``for_ids``.
    """

    top_k: int
    samples: int
    seed: tuple[int, int]

    @classmethod
    def for_ids(cls, ids: Sequence[int], *, top_k: int, samples: int, seed: int) -> KeepReference:
        """The draws depend on the prompt alone, not on what was scored before it."""
        own = zlib.crc32(np.array(ids, dtype="<i8").tobytes())
        return cls(top_k=top_k, samples=samples, seed=(seed, own))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReferences:
    """A prompt is to be compared with what was kept of it; mostly with one reference."""

    references: tuple[Reference, ...]


Wanted = KeepReference | CompareReferences | None
"""None: log-probabilities alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What is left of a prompt's distributions.

    Attributes:
        kept: the reference, where one was wanted.
        divergences: from each reference that was given; None of one of another vocabulary.
        vocabulary_size: V of the distributions.
    """

    kept: Reference | None
    divergences: tuple[Divergence | None, ...]
    vocabulary_size: int


def read_rows(rows: Rows | Tensor | LogprobRows) -> LogprobRows:
    """Rows of natural log-probabilities, float32, shape (T, V), where they are.

    Those of a CPU are read in place by numpy, which takes a fifth of torch's time.
    """
    if isinstance(rows, LogprobRows):
        return rows
    if isinstance(rows, np.ndarray):
        return HostRows(rows)
    if rows.device.type == "cpu":
        return HostRows(rows.numpy())
    from evalguard.models.device_rows import DeviceRows

    return DeviceRows(rows)


class PositionReduction:
    """Takes the rows of one prompt's scored positions in any number of parts, first to last.

    Args:
        token_ids: the scored tokens, shape (T,).
    """

    def __init__(self, token_ids: NDArray[np.int64], wanted: Wanted) -> None:
        self._ids = token_ids
        self._wanted = wanted
        self._done = 0
        self._vocabulary = 0
        self._kept: list[Reference] = []
        self._found: list[list[Divergence]] = []
        self._draws: Any = None
        if isinstance(wanted, KeepReference):
            self._draws = np.random.default_rng(wanted.seed)
        elif wanted is not None:
            self._found = [[] for _ in wanted.references]

    @property
    def missing(self) -> int:
        """Positions of which no row has come yet."""
        return len(self._ids) - self._done

    def add(self, logprobs: Rows | LogprobRows) -> None:
        """Reduce the next rows: natural log-probabilities, float32, shape (n, V).

        What a device holds stays there.

        Raises:
            ValueError: more than are missing, of another width than those before, or no
                log-probabilities.
        """
        count, width = logprobs.shape
        if count > self.missing or self._vocabulary not in (0, width):
            raise ValueError(
                f"{count} rows of {width} tokens, where {self.missing} of "
                f"{self._vocabulary or width} are missing"
            )
        self._vocabulary = width
        start, self._done = self._done, self._done + count
        wanted = self._wanted
        if wanted is None:
            return
        if isinstance(wanted, KeepReference):
            self._kept.append(
                reference(
                    logprobs,
                    self._ids[start : self._done],
                    top_k=wanted.top_k,
                    samples=wanted.samples,
                    seed=self._draws,  # goes on from one part to the next
                )
            )
            return
        for kept_reference, divergences in zip(wanted.references, self._found, strict=True):
            part = cut(kept_reference, [start, count, self.missing])[1]
            if part.vocabulary_size == width:
                divergences.append(divergence_from(part, logprobs))

    def finish(self) -> Reduced:
        """Return what is left of all rows.

        Raises:
            ValueError: some are missing.
        """
        if self.missing:
            raise ValueError(f"no rows of {self.missing} of {len(self._ids)} positions")
        return Reduced(
            kept=join_positions(self._kept) if self._kept else None,
            divergences=tuple(join_positions(of) if of else None for of in self._found),
            vocabulary_size=self._vocabulary,
        )
