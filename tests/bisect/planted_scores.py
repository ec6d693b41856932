"""An oracle without files or models: a function of the settings that are in, and jitter or none."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Untestable

Drift = Callable[[frozenset[str]], float]
N = 320
YARDSTICK = 0.01


class PlantedScores:
    """``drift``: of an assignment, in yardsticks; ``jitter``: its standard error, likewise.

    ``asked`` keeps every question; ``interrupt_at`` raises KeyboardInterrupt at that question.
    """

    n_documents = N

    def __init__(
        self,
        drift: Drift,
        *,
        jitter: float = 0.0,
        seed: int = 0,
        cannot: Callable[[frozenset[str]], bool] = lambda inside: False,
        interrupt_at: int | None = None,
    ) -> None:
        self._drift, self._jitter, self._seed = drift, jitter * YARDSTICK * N**0.5, seed
        self._cannot, self._interrupt_at = cannot, interrupt_at
        self._base = np.random.default_rng(seed).standard_normal(N)
        self.asked: list[tuple[frozenset[str], NDArray[np.intp]]] = []

    def measure(
        self, candidate_settings: frozenset[str], documents: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Scores of the documents."""
        if len(self.asked) == self._interrupt_at:
            raise KeyboardInterrupt
        self.asked.append((candidate_settings, documents))
        if self._cannot(candidate_settings):
            raise Untestable("out of memory", kind="out_of_memory")
        noise = np.zeros(N)
        if candidate_settings and self._jitter:
            key = zlib.crc32(" ".join(sorted(candidate_settings)).encode())
            noise = self._jitter * np.random.default_rng([self._seed, key]).standard_normal(N)
        worse = self._drift(candidate_settings) * YARDSTICK
        scores: NDArray[np.float64] = (self._base - worse + noise)[documents]
        return scores


def named(result: BisectResult) -> set[str]:
    return {culprit.name for culprit in result.culprits}


def effects(**each: float) -> Drift:
    """Additive effects by name."""
    return lambda inside: sum(size for name, size in each.items() if name in inside)


NAMES = tuple("abcdefghijkl")
