"""What a candidate may do to each document: differences with a known mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rng = np.random.Generator

# z_0.95 + z_0.8: a drift of so many standard errors is seen with 80% power, one-sided at 0.05.
SEEN = 2.486


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Per-document differences, positive where the candidate is worse.

    Attributes:
        draw: n differences around a mean: (rng, n, mean in standard deviations) -> (n,).
        scatter: their true standard deviation under the null.
        symmetric: whether a sign can be flipped under the null, as the companion tests assume.
        always_worse: the mean is what it is, and above 0: there is no null.
    """

    draw: Callable[[Rng, int, float], Array]
    scatter: float = 1.0
    symmetric: bool = True
    always_worse: float | None = None

    def sample(self, rng: Rng, n: int, *, drift: bool) -> tuple[Array, float]:
        """n differences and their true mean: 0, or what a test should see in 80% of samples."""
        if self.always_worse is not None:
            return self.draw(rng, n, 0.0), self.always_worse
        mean = SEEN * self.scatter / math.sqrt(n) if drift else 0.0
        return self.draw(rng, n, mean), mean


def _normal(rng: Rng, n: int, mean: float) -> Array:
    return rng.normal(mean, 1.0, n)


def _student(rng: Rng, n: int, mean: float) -> Array:
    return mean + rng.standard_t(3, n)


def _lognormal(spread: float, sign: float) -> Callable[[Rng, int, float], Array]:
    """Of variance 1 around the mean, with its long tail on the side of ``sign``."""
    centre = math.exp(spread * spread / 2.0)
    deviation = centre * math.sqrt(math.expm1(spread * spread))

    def draw(rng: Rng, n: int, mean: float) -> Array:
        return mean + sign * (rng.lognormal(0.0, spread, n) - centre) / deviation

    return draw


def _rare(share: float) -> Callable[[Rng, int, float], Array]:
    """Only a share of the documents differs at all; these move by a normal amount."""

    def draw(rng: Rng, n: int, mean: float) -> Array:
        return np.where(rng.random(n) < share, rng.normal(mean / share, 1.0, n), 0.0)

    return draw


def _rare_losses(share: float) -> Callable[[Rng, int, float], Array]:
    def draw(rng: Rng, n: int, _: float) -> Array:
        return np.where(rng.random(n) < share, rng.exponential(1.0, n), 0.0)

    return draw


DIFFERENCES: dict[str, Differences] = {
    "normal": Differences(draw=_normal),
    "heavy tails (t, 3 df)": Differences(draw=_student, scatter=math.sqrt(3.0)),
    "a long tail of losses (lognormal, 1)": Differences(draw=_lognormal(1.0, 1.0), symmetric=False),
    "a long tail of gains (lognormal, 1)": Differences(draw=_lognormal(1.0, -1.0), symmetric=False),
    "a very long tail of losses (lognormal, 1.5)": Differences(
        draw=_lognormal(1.5, 1.0), symmetric=False
    ),
    "95% identical, the rest normal": Differences(draw=_rare(0.05), scatter=math.sqrt(0.05)),
    "99% identical, the rest normal": Differences(draw=_rare(0.01), scatter=math.sqrt(0.01)),
    "95% identical, the rest losses": Differences(draw=_rare_losses(0.05), always_worse=0.05),
    "99% identical, the rest losses": Differences(draw=_rare_losses(0.01), always_worse=0.01),
}
