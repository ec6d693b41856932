"""Tails: what can be said of sum p log(p / q) over the tokens of which the base's p is unknown.

Known are the tail's mass p_T, a cap c that no p_i exceeds, a few draws from it, and all q_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import Float
from evalguard.core.row_tails import RowTails
from evalguard.core.top_tokens import Ids

# Near: log ratios up to 1, in every kept token and in all that is known of the tail.
NEAR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionTail:
    """The tails of T positions; probabilities are renormalised.

    Attributes:
        p_mass, q_mass: of base and candidate, shape (T,).
        cap: the base's smallest kept probability, shape (T,).
        full: how many tokens the base's tail can fill up to the cap, see :func:`count_full`.
        rows: what the candidate's rows say of the tail, as given: not renormalised.
        log_q_sums: what they are to be renormalised by, shape (T,).
        draws: log(p / q) of m tokens drawn from the base's tail, each with its probability, shape
            (T, m); anything where ``p_mass`` is 0.
        full_support: whether all p_i > 0, shape (T,).
        near: whether the kept tokens' log ratios are at most 1, shape (T,).
    """

    p_mass: Float
    q_mass: Float
    cap: Float
    full: Ids
    rows: RowTails
    log_q_sums: Float
    draws: Float
    full_support: NDArray[np.bool_]
    near: NDArray[np.bool_]

    def smallest(self) -> Float:
        """The infimum: p_T log(p_T / q_T), by the log-sum inequality; nats, shape (T,)."""
        return smallest_tail(self.p_mass, self.q_mass)

    def largest(self) -> Float:
        """The supremum, see :func:`largest_tail`; shape (T,)."""
        with np.errstate(invalid="ignore"):  # rows that are no distribution
            shifts = self.p_mass * self.log_q_sums
        return largest_tail(self.rows, self.full, self.p_mass, self.cap) + shifts

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
        with np.errstate(invalid="ignore"):
            largest_q = np.exp(self.rows.largest - self.log_q_sums)
        near: NDArray[np.bool_] = self.near & (largest_q <= limit * self.cap)
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


def count_full(mass: Float, cap: Float, tokens: int) -> Ids:
    """How many of a tail's ``tokens`` hold their cap where ``mass`` is put on few; shape (T,)."""
    known = (mass > 0.0) & (cap > 0.0)
    ratios = np.divide(mass, cap, out=np.zeros_like(mass), where=known)
    return np.minimum(ratios, tokens).astype(np.int64)


def largest_tail(rows: RowTails, full: Ids, mass: Float, cap: Float) -> Float:
    """sup of sum p_i log(p_i / q_i) over 0 <= p_i <= cap with sum p_i = mass; nats, shape (T,).

    The sum is convex in p, so that its maximum lies at a vertex: every p_i is 0 or cap, but one
    that takes the remainder. Of these vertices the one with the most mass on the smallest q_i is
    the largest (rearrangement). It is attained, so that no smaller bound holds for all tails.
    It is inf where the tail may lie on a token that the candidate cannot say.

    Args:
        rows: of the candidate; ``least_sum`` is that of ``full`` tokens.
        full: of :func:`count_full`.
        mass: at most the tail's tokens * cap; NaN gives NaN.
        cap: above 0 where ``mass`` is.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        at_cap = np.where(full > 0, full * cap * np.log(cap) - cap * rows.least_sum, 0.0)
        rest = mass - full * cap
        others = rest > 0.0
        others &= rows.next_least < np.inf  # of kept tokens: the tail is full
        last = np.where(others, rest * (np.log(rest) - rows.next_least), 0.0)
    totals: Float = np.where(mass > 0.0, at_cap + last, 0.0 * mass)
    return totals
