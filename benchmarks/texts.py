"""Texts of many lengths: log-likelihoods that grow with the words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.differences import SEEN, Array, Rng

_SCATTER = 0.1  # of a text's drift a word, in nats


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Attributes:
    words: lengths of n texts.
    inequality: E[w^2] / E[w]^2, which texts of equal length would have at 1.
    longer_are_worse: by how much a text drifts more for each unit of log(words), around
        ``centre``, the mean of log(words) weighted by words, where it adds nothing in total.
    """

    words: Callable[[Rng, int], Array]
    inequality: float
    longer_are_worse: float = 0.0
    centre: float = 0.0

    @property
    def even(self) -> bool:
        """Whether a text's sign can be flipped under the null."""
        return self.longer_are_worse == 0.0

    def sample(self, rng: Rng, n: int, *, drift: bool) -> tuple[Array, Array, Array, float]:
        """Base log-likelihoods, differences, words, and the true drift a word in nats."""
        words = self.words(rng, n)
        truth = SEEN * _SCATTER * math.sqrt(self.inequality / n) if drift else 0.0
        rate = truth + rng.normal(0.0, _SCATTER, n)
        rate += self.longer_are_worse * (np.log(words) - self.centre)
        return -words * rng.gamma(4.0, 0.5, n), words * rate, words, truth


def _short(rng: Rng, n: int) -> Array:
    return rng.integers(5, 121, n).astype(np.float64)


def _unequal(rng: Rng, n: int) -> Array:
    return np.asarray(np.ceil(rng.lognormal(4.5, 1.0, n)))


_INEQUALITY = math.exp(1.0)

TEXTS: dict[str, Texts] = {
    "texts of 5 to 120 words": Texts(words=_short, inequality=1.0 + (116**2 - 1) / 12 / 62.5**2),
    "very unequal texts (lognormal, 1)": Texts(words=_unequal, inequality=_INEQUALITY),
    "very unequal texts, long ones drift more": Texts(
        words=_unequal, inequality=_INEQUALITY, longer_are_worse=0.05, centre=5.5
    ),
}
