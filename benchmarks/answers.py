"""Right and wrong answers of two models, of which few differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.differences import SEEN, Array, Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """0/1 answers of a base with this accuracy, of which this share flips in the candidate."""

    accuracy: float
    flips: float

    @property
    def has_null(self) -> bool:
        """Whether as many can be won as lost; a base that has nearly all right cannot win."""
        return self.flips / 2.0 <= min(self.accuracy, 1.0 - self.accuracy)

    def rates(self, n: int, *, drift: bool) -> tuple[float, float]:
        """Shares of documents lost and won; the drift is seen by 80% of samples, if it fits."""
        wrong = 1.0 - self.accuracy
        surplus = SEEN * math.sqrt(self.flips / n) if drift else 0.0
        won = max(0.0, min((self.flips - surplus) / 2.0, wrong))
        return min(self.flips - won, self.accuracy), won

    def sample(self, rng: Rng, n: int, *, drift: bool) -> tuple[Array, Array, float]:
        """Answers of base and candidate, and the true drift."""
        lost, won = self.rates(n, drift=drift)
        same = max(1e-12, 1.0 - lost - won)
        right = min(1.0, max(0.0, (self.accuracy - lost) / same))
        which, stays = rng.random(n), rng.random(n) < right
        is_lost, is_won = which < lost, (which >= lost) & (which < lost + won)
        base = np.where(is_lost, True, np.where(is_won, False, stays))
        candidate = np.where(is_lost, False, np.where(is_won, True, stays))
        return base.astype(np.float64), candidate.astype(np.float64), lost - won


def answer_sheets() -> Iterator[tuple[str, Answers]]:
    """Accuracies and shares of flips, and two bases at their boundary."""
    for accuracy in (0.3, 0.7, 0.97):
        for flips in (0.005, 0.03, 0.09):
            name = f"accuracy {accuracy:.0%}, {100.0 * flips:g}% flips"
            yield name, Answers(accuracy=accuracy, flips=flips)
    yield "base always right, 2% lost", Answers(accuracy=1.0, flips=0.02)
