"""Tails: what can be said of sum p log(p / q) over the tokens of which the base's p is unknown.

Known are the tail's mass p_T, a cap c that no p_i exceeds, a few draws from it, and all q_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import (
    Float,
    Row,
)

# Near: log ratios up to 1, in every kept token and in all that is known of the tail.
NEAR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionTail:
    """The tails of one piece of the positions; probabilities are renormalised.

    Attributes:
        p_mass, q_mass: of base and candidate, shape (T,).
        cap: the base's smallest kept probability, shape (T,).
        log_q: the candidate's log-probabilities, as given, +inf at kept tokens, shape (T, V).
        log_q_sums: what ``log_q`` is to be renormalised by, shape (T,).
        largest_q: the largest of the candidate's probabilities, shape (T,).
        draws: log(p / q) of m tokens drawn from the base's tail, each with its probability, shape
            (T, m); anything where ``p_mass`` is 0.
        full_support: whether all p_i > 0, shape (T,).
        near: whether the kept tokens' log ratios are at most 1, shape (T,).
    """

    p_mass: Float
    q_mass: Float
    cap: Float
    log_q: Row
    log_q_sums: Float
    largest_q: Float
    draws: Float
    full_support: NDArray[np.bool_]
    near: NDArray[np.bool_]

    def smallest(self) -> Float:
        """The infimum: p_T log(p_T / q_T), by the log-sum inequality; nats, shape (T,)."""
        return smallest_tail(self.p_mass, self.q_mass)

    def largest(self) -> Float:
        """The supremum, see :func:`largest_tail`; shape (T,)."""
        cap, mass = self.cap, self.p_mass
        tails = [
            largest_tail(row[row < np.inf], float(mass[i]), float(cap[i])) + float(mass[i] * shift)
            for i, (row, shift) in enumerate(zip(self.log_q, self.log_q_sums, strict=True))
        ]
        return np.array(tails)

    def estimate(self) -> Float:
        """The unbiased estimate from the draws, shape (T,).

        p_T mean log(p / q) is unbiased, and its error is of the size of log(p / q) itself, where
        KL is of the size of its square. Since the draws of q / p have the known mean q_T / p_T
        (all p_i > 0), p_T mean(log(p / q) + q / p - 1) + p_T - q_T is unbiased too, and its error
        is of the size of KL. It scatters badly where q / p can be huge; so it is taken only where
        what is known, the draws aside (they would bias it), says that p and q are near.
        """
        draws = np.where(self.p_mass[:, None] == 0.0, 0.0, self.draws)
        plain = self.p_mass * draws.mean(axis=1)
        with np.errstate(over="ignore"):
            errors = draws + np.expm1(-draws)
            controlled = self.p_mass * errors.mean(axis=1) + (self.p_mass - self.q_mass)
        tails: Float = np.where(self._controlled(), controlled, plain)
        return tails

    def _controlled(self) -> NDArray[np.bool_]:
        limit = math.exp(NEAR)
        near: NDArray[np.bool_] = self.near & (self.largest_q <= limit * self.cap)
        near &= self.q_mass <= limit * self.p_mass
        near &= self.full_support & (self.p_mass > 0.0)
        return near


def smallest_tail(p_mass: Float, q_mass: Float) -> Float:
    """inf of sum p_i log(p_i / q_i) over all p with sum p_i = p_T: p_T log(p_T / q_T).

    T. M. Cover, J. A. Thomas, Elements of Information Theory, 2006, theorem 2.7.1. Shape (T,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = p_mass * (np.log(p_mass) - np.log(q_mass))
    return np.where(p_mass == 0.0, 0.0, tails)


def largest_tail(log_q: Row, mass: float, cap: float) -> float:
    """sup of sum p_i log(p_i / q_i) over 0 <= p_i <= cap with sum p_i = mass.

    The sum is convex in p, so that its maximum lies at a vertex: every p_i is 0 or cap, but one
    that takes the remainder. Of these vertices the one with the most mass on the smallest q_i is
    the largest (rearrangement). It is attained, so that no smaller bound holds for all tails.

    Args:
        log_q: log-probabilities of the tail's tokens under the candidate, shape (n,).
        mass: at most n * cap; NaN gives NaN.
        cap: above 0 where ``mass`` is.

    Returns:
        The bound in nats; inf where the tail may lie on a token that the candidate cannot say.
    """
    n = log_q.shape[0]
    if mass == 0.0 or n == 0 or not mass <= math.inf:
        return 0.0 * mass
    full = min(int(mass / cap), n)
    smallest = np.partition(log_q, min(full, n - 1)).astype(np.float64)
    total = 0.0
    if full > 0:
        total = full * cap * math.log(cap) - cap * float(smallest[:full].sum())
    rest = mass - full * cap
    if rest > 0.0 and full < n:
        total += rest * (math.log(rest) - float(smallest[full]))
    return total
