"""Figures of sampled answers: where no seed is honoured, every model that is asked draws anew."""

from __future__ import annotations

from itertools import count, islice

import numpy as np
import pytest
from numpy.typing import NDArray
from planted_scores import named

from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.stats.binary import mcnemar_mid_p

NAMES = tuple(f"s{number}" for number in range(8))
N, SHARE, LEVEL = 40, 0.2, 0.025


class Drawn:
    """Whether answers loop: on average in a fifth of the documents, whatever the settings."""

    n_documents = N

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def measure(
        self, candidate_settings: frozenset[str], documents: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        words = [self._seed, *sorted(int(name[1:]) + 1 for name in candidate_settings)]
        loops = np.random.default_rng(words).random(N) < SHARE
        return -loops.astype(np.float64)[documents]


def unlucky(seed: int) -> bool:
    """Whether the candidate's answers fail a gate by chance."""
    everything = np.arange(N)
    drift = Drawn(seed).measure(frozenset(), everything)
    drift = drift - Drawn(seed).measure(frozenset(NAMES), everything)
    return mcnemar_mid_p(int(np.sum(drift > 0.0)), int(np.sum(drift < 0.0))) <= LEVEL


@pytest.mark.parametrize("seed", [*islice(filter(unlucky, count()), 4)])
def test_nobody_is_blamed_for_a_failure_by_chance(seed: int) -> None:
    result = find_culprits(
        Drawn(seed), NAMES, margin=1.0, yardstick=4.5 / N, seed=seed, level=LEVEL
    )  # fmt: skip
    assert named(result) == set()
