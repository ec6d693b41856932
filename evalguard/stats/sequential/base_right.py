"""How many of all N documents the base has right, from a random part of them."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from evalguard.stats.sequential.betting import Array


def right_interval(right: int, n: int, population: int, *, alpha: float) -> tuple[int, int]:
    """Confidence sequence of the number R of ones among N, exact at all times together.

    With a uniform prior on R the ratio prior(R) / posterior(R) is a martingale for the true R
    (prior-posterior ratio; I. Waudby-Smith, A. Ramdas, NeurIPS 2020): the R at which it stays below
    1 / alpha hold the true one at every n with probability 1 - alpha. The posterior of R - r is
    beta-binomial with N - n documents, r + 1 and n - r + 1.

    Args:
        right: r, ones among the first n.
        alpha: 0 for what is possible at all.
    """
    lowest, highest = right, right + population - n
    if alpha <= 0.0 or n >= population:
        return lowest, highest
    more = np.arange(population - n + 1, dtype=np.float64)
    rest = population - n
    log_posterior = (
        _log_choose(float(rest), more)
        + special.betaln(more + right + 1.0, rest - more + n - right + 1.0)
        - special.betaln(right + 1.0, n - right + 1.0)
    )
    kept = np.flatnonzero(-math.log(population + 1.0) - log_posterior < -math.log(alpha))
    if kept.size == 0:  # cannot be: the posterior's mode is above the uniform prior
        return lowest, highest
    return right + int(kept[0]), right + int(kept[-1])


def _log_choose(n: float, k: Array) -> Array:
    result: Array = -special.betaln(n - k + 1.0, k + 1.0) - math.log(n + 1.0)
    return result
