"""Betting against a total: exact inference on a finite population sampled without replacement.

Documents come in random order, each with a value x_i. Whoever claims that the N values sum to k
claims with it that the next one has the mean mu_i = (k - x_1 - ... - x_{i-1}) / (N - i + 1),
given all before. A gambler who starts with 1 and stakes lambda_i, chosen from what came before,
on small values has after n documents

    W_n = prod_i (1 - lambda_i (x_i - mu_i)),

a martingale where the claim is true, and a supermartingale where the true total is larger still.
While every factor can only be positive or 0, Ville's inequality bounds the chance that W ever
reaches 1 / alpha, at whatever time one looks, by alpha. So "the total is k or more" may be
denied as soon as W >= 1 / alpha (I. Waudby-Smith, A. Ramdas, "Confidence sequences for sampling
without replacement", NeurIPS 2020; "Estimating means of bounded random variables by betting",
JRSS B 86, 2024, 1-27).

A factor stays positive while lambda_i <= 1 / (bound - mu_i), with ``bound`` the largest value
that any document can have. Stakes decide how fast one wins, never whether one may believe it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def before(values: Array) -> Array:
    """Sum of what came before each document; float64, shape (n,)."""
    return np.concatenate(([0.0], np.cumsum(values)[:-1]))


def remaining_stake(n: int, population: int) -> Array:
    """Documents that are left before each of the first n is drawn: N, N - 1, ..."""
    return population - np.arange(n, dtype=np.float64)


def just_deniable(mean: Array, scatter: Array, worst: float | Array, level: float) -> Array:
    """Means that the documents before would about just deny at a level: where to aim a bet.

    mean + sqrt(2 v L / i) + worst L / (2 i) with L = log(1 / level), as in Bernstein's inequality.
    It only says how to bet, so that it need not be exact.

    Args:
        mean: of the documents before the i-th, shape (n,), and ``scatter`` v their second moment.
        worst: the largest value a document can have.
    """
    count = np.arange(1.0, mean.shape[0] + 1.0)
    amount = -np.log(level)
    spread = np.sqrt(2.0 * np.maximum(0.0, scatter) * amount / count)
    result: Array = mean + spread + worst * amount / (2.0 * count)
    return result


def log_wealth(deviations: Array, stakes: Array, highest: Array) -> float:
    """log W_n; minus infinity where a stake was more than one can lose.

    Args:
        deviations: x_i - mu_i, shape (n,).
        stakes: lambda_i, not negative, each from what came before document i.
        highest: bound - mu_i, the largest deviation there could have been.
    """
    # The last bits of a double must not let a stake of exactly all look like more than all.
    if bool(np.any(stakes * highest > 1.0 + 1e-12)):
        return -np.inf
    with np.errstate(divide="ignore"):
        return float(np.sum(np.log1p(-np.minimum(1.0, stakes * deviations))))
