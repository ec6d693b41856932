"""Whether two sides give the same documents in another order, told from the numbers alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import MisalignedRunsError

Array = NDArray[Any]
_NUMBERS = 256  # of a document are looked at
# As near another document as that is met by chance once in 1e8: (near / far) ** numbers
_BY_CHANCE = 1e-8
_NEAR = 0.3


class DocumentOrder:
    """Takes in documents of both sides, and says which of the candidate's are another one's.

    Such a document is far nearer to another one of the base's than to its own, and than that one is
    to any third; no two are the same one, as of a model that answers everything alike.
    """

    def __init__(self) -> None:
        self._count = 0
        self._by_shape: dict[tuple[int, ...], list[tuple[int, Array, Array]]] = defaultdict(list)

    def add(self, base: Array, candidate: Array) -> None:
        """Take in one document's numbers, of one shape; one that holds NaN is no other one."""
        picked = np.arange(base.size)
        if base.size > _NUMBERS:
            picked = np.random.default_rng(0).integers(0, base.size, _NUMBERS)
        ours, theirs = (
            numbers.reshape(-1)[picked].astype(np.float64) for numbers in (base, candidate)
        )
        if np.isfinite(ours).all() and np.isfinite(theirs).all():
            self._by_shape[base.shape].append((self._count, ours, theirs))
        self._count += 1

    def differing(self) -> bool:
        """Whether two documents of a shape differ on the base's side, so that order matters."""
        return any(
            np.any(ours != alike[0][1]) for alike in self._by_shape.values() for _, ours, _ in alike
        )

    def exchanged(self) -> list[tuple[int, int]]:
        """Numbers of documents of the candidate, and of those of the base's that they are."""
        pairs: list[tuple[int, int]] = []
        for alike in self._by_shape.values():
            base = np.stack([ours for _, ours, _ in alike])
            near = min(_NEAR, _BY_CHANCE ** (1.0 / max(base.shape[1], 1)))
            for own, (number, _, row) in enumerate(alike):
                distances = np.linalg.norm(base - row, axis=1)
                nearest = int(np.argmin(distances))
                if distances[nearest] >= near * distances[own]:
                    continue
                apart = np.delete(np.linalg.norm(base - base[nearest], axis=1), nearest)
                if distances[nearest] < near * apart.min():
                    pairs.append((number, alike[nearest][0]))
        origins = {origin for _, origin in pairs}
        return pairs if len(origins) == len(pairs) else []

    def refuse_exchanged(self, names: Sequence[str], sides: tuple[str, str], hint: str) -> None:
        """Refuse documents that are another one's.

        Args:
            names: of the documents; sides: of base and candidate.

        Raises:
            MisalignedRunsError: naming the first, and how many there are.
        """
        pairs = self.exchanged()
        if pairs:
            number, origin = pairs[0]
            raise MisalignedRunsError(
                f"documents look exchanged: {names[number]} of {sides[1]} is as {names[origin]} of "
                f"{sides[0]} and not as its own, one of {len(pairs)} of {self._count}",
                hint=hint,
            )
