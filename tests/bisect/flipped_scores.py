"""An oracle of right and wrong answers, of which settings change a few and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

N = 160
YARDSTICK = 0.036  # the base's standard error, about
DOCUMENT = 1.0 / N / YARDSTICK  # one document more wrong, in yardsticks

Acts = Callable[[frozenset[str]], bool]


class FlippedScores:
    """``flips``: what acts in an assignment, and how many documents it makes wrong, each its own.

    ``strays``: settings of which each changes one document more, every second one for the better.
    ``ties``: documents, as many right as wrong ones, of which every assignment but the base
    changes a quarter at random, anew.
    """

    n_documents = N

    def __init__(
        self,
        flips: Iterable[tuple[Acts, int]],
        *,
        strays: Iterable[str] = (),
        ties: int = 0,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng([seed, 1])
        self._seed = seed
        self._base = (np.arange(N) % 10 < 7).astype(np.float64)
        right = rng.permutation(np.flatnonzero(self._base == 1.0)).tolist()
        wrong = rng.permutation(np.flatnonzero(self._base == 0.0)).tolist()
        self._changes = [(acts, [right.pop() for _ in range(count)]) for acts, count in flips]
        self._ties = np.array([side.pop() for side in (right, wrong) for _ in range(ties // 2)])
        for at, name in enumerate(strays):
            document = (wrong if at % 2 else right).pop()
            self._changes.append((lambda inside, name=name: name in inside, [document]))

    def measure(
        self, candidate_settings: frozenset[str], documents: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Scores of the documents."""
        changed = np.zeros(N, dtype=np.bool_)
        for acts, where in self._changes:
            if acts(candidate_settings):
                changed[where] = True
        if candidate_settings and self._ties.size:
            words = [self._seed, 2, *sorted(int(name[1:]) for name in candidate_settings)]
            changed[self._ties] = np.random.default_rng(words).random(self._ties.size) < 0.25
        scores: NDArray[np.float64] = np.where(changed, 1.0 - self._base, self._base)[documents]
        return scores


def with_all(*names: str) -> Acts:
    """Acts where all of these are in."""
    return lambda inside: inside.issuperset(names)


def with_any(*names: str) -> Acts:
    """Acts where one of these is in."""
    return lambda inside: not inside.isdisjoint(names)
