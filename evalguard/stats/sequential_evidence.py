"""Exact evidence about sigma_N from part of the documents: of flips, and of bounded scores.

Of N documents b get lost and c won (D = b - c), and the base has R right. The full run's sigma
is D / sqrt(R (N - R) / (N - 1)), so it is above a margin m exactly where D > m h(R), with h(R) =
sqrt(R (N - R) / (N - 1)), a concave function. Both D and R are unknown.

A pair (D, R) is a claim about the mean of the next document's flip d_i and of the base's being
right, r_i, given all before (see betting.py). For every predictable stake lambda_i and slope s_i

    W(D, R) = prod_i (1 - lambda_i ((d_i - mu_i^D) - s_i (r_i - mu_i^R)))

is a martingale under that claim, so that it exceeds 1 / alpha at any time with a chance of at
most alpha. The slope takes away what R moves of the claim "D = m h(R)", to first order.

"sigma_N >= m" is denied if W is large enough at every pair with D >= m h(R) and R in the
confidence sequence of R (whose own error is ``reserved``). That is every such pair if it is the
two at the sequence's ends on a line below m h: every factor is linear in (D, R) and rises with
D, hence log W is concave and rises with D; over the region above a line its minimum lies at an
end of the line. For a concave m h the chord is such a line, for a convex one (m < 0) the
tangent. For "sigma_N <= m" everything is mirrored. A stake that could lose more than all denies
nothing. So a true claim is denied, at any look, with a chance of at most ``reserved`` + (alpha -
reserved) = alpha.

A margin in points has h(R) = N, a share of the base's value h(R) = R: both are lines, so that
chord and tangent are the claim itself.

How little can be enough: a candidate without any flip is told from one that loses K = m h(R)
documents only by not having drawn any of these: (1 - n / N)^K <= alpha, or n / N >= 1 - alpha^(1
/ K), about ln(1 / alpha) / K. No method can do with less.

The claim "sigma_N >= m" says that the documents' excesses T_i (betting.py) sum to 0 or more over
all N; it is bet against as in betting.py. That asks for a bound: no document's T_i is above B. A
document may lose without limit, so B is an assumption, and it is printed with the verdict:

    B = max(2 standard deviations of the base's values,
            3 times the largest loss seen
            + 3^2 times the largest influence on the base's standard error seen):

no document that was not asked is three times as far out as those that were, in its loss or in
the base's own score, whose square is its influence. Where the margin's unit is fixed (points, a
share of a perplexity, a base that is known) no influence makes room, and the largest move to
either side counts: with tails to both sides and 500 documents, 14% of orders were wrong without.

That is enough for a pass, which says it. It is not for a regression: where few documents gain what
all others lose, a part that holds none of them has no scatter, and half of such orders were called
regressed (benchmarks/stopping.py). So a metric that looks to be above is asked of all documents.

It stands between a candidate whose first documents are all alike and the verdict: without
scatter, wealth grows by the factor 1 + mu / B a document, so that n >= ln(1 / alpha) B / mu
documents are needed: the rule of three for a group of documents that each lose B unseen. No t
interval knows of such a group. With the first term and a margin of 1, a candidate without a
drift needs about 2 ln(1 / alpha) / sqrt(N) of the documents: 10% of 3,600 at 5%.

Stakes: with v the second moment of the deviations seen and p = a / i the share of documents that
may lose B unseen, x maximises -x (m - mu) - x^2 v / 2 + p log(1 - x (B - mu)), a quadratic's
root: the best stake for the scatter seen, and below 1 / B without any.

B, u and the scatter are those of all documents so far, so that the stakes are not predictable in
these numbers: for any fixed ones of them W is a supermartingale, and that is the sense in which
"given B" is meant. What choosing them afterwards costs is measured (benchmarks/stopping.py).

Exact, given B, where the base's standard error over all N documents is known; else asymptotic in
that one number.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from evalguard.core.verdict import MarginUnit
from evalguard.stats.betting import (
    Array,
    Excess,
    before,
    just_deniable,
    log_wealth,
    remaining_stake,
)

_OF_SCATTER = 2.0
_OF_SEEN = 3.0
_SEEN_IN_ADVANCE = 0.03
_HIGHEST_STAKE = 0.98
_SPARE = 1.3


class BoundedEvidence:
    """Evidence of the first n of N documents; see the module's text.

    Args:
        of: their excess over a margin.
        population: N, above n.
        margin: the sigma that the stakes aim at.
        level: aim at the sigmas that were about deniable at this level instead: for the ends of an
            interval that lie far from the margin.
    """

    reserved = 0.0

    def __init__(
        self, of: Excess, population: int, *, margin: float, level: float | None = None
    ) -> None:
        self._of, self._level = of, level
        self._left = remaining_stake(of.drifts.shape[0], population)
        aimed = of.beyond(margin)
        assert aimed is not None  # a margin is not negative
        self._aimed = aimed
        unit = of.of_the_unit(margin)
        self._more = self._bound(aimed - unit, unit)
        self._less = self._bound(unit - aimed, -unit)
        self._against_more = self._stakes(aimed, self._more)
        self._against_less = self._stakes(-aimed, self._less)

    def worst(self) -> tuple[float, float]:
        """The most that a document is allowed to lose, and the most that one lost so far.

        In the unit of a document's own values. The excess over the margin counts, which all
        but equals the loss.
        """
        seen = float(np.max(self._of.drifts))
        return self._more * self._of.mean_weight, seen * self._of.mean_weight

    def against_more(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or more"."""
        beyond = self._of.beyond(margin)
        if beyond is None:
            return -np.inf if margin < 0.0 else np.inf
        return _log_wealth(beyond, self._aimed, self._left, self._against_more, self._more)

    def against_less(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or less"."""
        beyond = self._of.beyond(margin)
        if beyond is None:
            return np.inf if margin < 0.0 else -np.inf
        return _log_wealth(-beyond, -self._aimed, self._left, self._against_less, self._less)

    def _bound(self, drifts: Array, unit: Array) -> float:
        seen = _OF_SEEN * max(0.0, float(np.max(drifts if np.any(unit) else np.abs(drifts))))
        seen += _OF_SEEN * _OF_SEEN * max(0.0, float(np.max(unit)))
        return max(_OF_SCATTER * self._of.scatter, seen)

    def _stakes(self, beyond: Array, bound: float) -> Array:
        count = np.arange(beyond.shape[0], dtype=np.float64)
        total, several = before(beyond), np.maximum(count, 1.0)
        mu, mean = -total / self._left, total / several
        squares = before(np.square(beyond)) / several
        if self._level is not None:
            mu = just_deniable(mean, squares - np.square(mean), bound, self._level)
        scatter = np.maximum(0.0, squares - 2.0 * mu * mean + np.square(mu))
        # Claims nearer than the one aimed at can lose more on a document.
        highest = np.maximum(bound - mu if self._level is None else _SPARE * bound, 1e-300)
        gain = (mu - mean) - _SEEN_IN_ADVANCE / (count + 1.0) * highest
        middle = scatter + (mu - mean) * highest
        root = np.sqrt(np.maximum(0.0, np.square(middle) - 4.0 * scatter * highest * gain))
        stake = 2.0 * gain / np.maximum(middle + root, 1e-300)
        return np.where(gain > 0.0, np.clip(stake, 0.0, _HIGHEST_STAKE / highest), 0.0)


def _log_wealth(
    beyond: Array, aimed: Array, remaining: Array, stakes: Array, bound: float
) -> float:
    means = -before(beyond) / remaining
    # The bound is one on what a document loses; at another margin its excess is another.
    highest = np.maximum(bound + float(np.max(beyond - aimed)) - means, 1e-300)
    return log_wealth(beyond - means, np.minimum(stakes, _HIGHEST_STAKE / highest), highest)


# Shares of one flip, taken as seen in advance: found by simulation (benchmarks/stopping.py).
_SEEN_AGAINST_MORE = 0.02
_SEEN_AGAINST_LESS = 0.25
_FOR_RIGHT = 0.02
Claim = tuple[float, float]


class FlipEvidence:
    """Evidence of the first n of N documents of a 0/1 metric; see the module's text.

    Args:
        d: 1 for a document lost, -1 for one won, else 0, in the order drawn, shape (n,).
        right: 1 where the base is right, else 0, shape (n,).
        population: N, above n.
        margin: the margin that the stakes aim at; every other one can be asked too.
        unit: of the margins: sigmas, points (the flips' mean) or shares of the base's value.
        alpha: the smallest level that will be asked for.
        level: aim at the sigmas that were about deniable at this level instead: for the ends of an
            interval that lie far from the margin.
        right_of_all: R, where it is known; the level is then spent on D alone.
    """

    def __init__(
        self,
        d: Array,
        right: Array,
        population: int,
        *,
        margin: float,
        alpha: float,
        level: float | None = None,
        right_of_all: int | None = None,
        unit: MarginUnit = "sigma",
    ) -> None:
        n = d.shape[0]
        self._unit: MarginUnit = unit
        if unit == "points":  # whatever the base
            right_of_all = int(np.sum(right))
        self._d, self._right, self._n_all = d, right, population
        self.reserved = 0.0 if right_of_all is not None else _FOR_RIGHT * alpha
        seen = int(np.sum(right))
        self._ends: tuple[float, float]
        if right_of_all is None:
            low, high = right_interval(seen, n, population, alpha=self.reserved)
            self._ends = float(low), float(high)
        else:
            self._ends = float(right_of_all), float(right_of_all)
        self._middle = min(max(population * seen / n, self._ends[0]), self._ends[1])
        self._left = remaining_stake(n, population)
        self._d_before, self._right_before = before(d), before(right)
        guess = population * (self._right_before + 0.5) / (np.arange(n) + 1.0)
        if right_of_all is not None:
            guess = np.full(n, float(right_of_all))
        self._slopes = margin * _slope(guess, population, unit)
        aimed = (margin * _size(guess, population, unit) - self._d_before) / self._left
        more, less = (aimed, -aimed) if level is None else self._deniable(level)
        self._against_more = self._stakes(d, more, _SEEN_AGAINST_MORE)
        self._against_less = self._stakes(-d, less, _SEEN_AGAINST_LESS)

    def _stakes(self, d: Array, claimed: Array, seen: float) -> Array:
        """Kelly's stakes, kept below what claims near the one aimed at could lose."""
        most = 1.0 + 2.0 * np.abs(self._slopes) + 2.0 * np.maximum(0.0, -claimed)
        return np.minimum(kelly_stakes(d, claimed, seen=seen), _HIGHEST_STAKE / most)

    def _deniable(self, level: float) -> tuple[Array, Array]:
        count = np.arange(self._d.shape[0]) + 1.0
        mean, scatter = self._d_before / count, (before(np.abs(self._d)) + 0.5) / count
        more, less = (just_deniable(sign * mean, scatter, 1.0, level) for sign in (1.0, -1.0))
        return more, less

    def against_more(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or more"."""
        claims = self._chord(margin) if margin >= 0.0 else self._tangent(margin)
        return min(self._log_wealth(claim, self._against_more, sign=1.0) for claim in claims)

    def against_less(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or less"."""
        claims = self._tangent(margin) if margin >= 0.0 else self._chord(margin)
        return min(self._log_wealth(claim, self._against_less, sign=-1.0) for claim in claims)

    def _log_wealth(self, claim: Claim, stakes: Array, *, sign: float) -> float:
        total, right = claim
        mean_d = (total - self._d_before) / self._left
        mean_right = (right - self._right_before) / self._left
        deviations = (self._d - mean_d) - self._slopes * (self._right - mean_right)
        # d - s r is at most 1 + max(0, -s), and at least -1 - max(0, s).
        most = 1.0 + np.maximum(0.0, -sign * self._slopes)
        highest = most - sign * (mean_d - self._slopes * mean_right)
        return log_wealth(sign * deviations, stakes, highest)

    def _chord(self, margin: float) -> tuple[Claim, Claim]:
        low, high = self._ends
        return (
            (margin * self._size_at(low), low),
            (margin * self._size_at(high), high),
        )

    def _tangent(self, margin: float) -> tuple[Claim, Claim]:
        low, high = self._ends
        if low == high:
            return self._chord(margin)
        touching = min(max(self._middle, 0.5), self._n_all - 0.5)
        at = margin * self._size_at(touching)
        rise = margin * float(_slope(np.array([touching]), self._n_all, self._unit)[0])
        return (at + rise * (low - touching), low), (at + rise * (high - touching), high)

    def _size_at(self, right: float) -> float:
        return float(_size(np.array([right]), self._n_all, self._unit)[0])


def _size(right: Array, population: int, unit: MarginUnit) -> Array:
    """h(R): N times a unit of margins; of sigma, the base's standard error over all documents."""
    if unit != "sigma":
        return right if unit == "relative" else np.full_like(right, float(population))
    inside = np.maximum(0.0, right * (population - right))
    result: Array = np.sqrt(inside / (population - 1))
    return result


def _slope(right: Array, population: int, unit: MarginUnit) -> Array:
    """h'(R); 0 at the ends, where it is infinite and of no use."""
    if unit != "sigma":
        return np.full_like(right, 1.0 if unit == "relative" else 0.0)
    size = _size(right, population, unit)
    steep = (population - 2.0 * right) / np.maximum(2.0 * size * (population - 1), 1e-9)
    return np.where(size > 0.0, steep, 0.0)


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
    unseen_ones = np.arange(population - n + 1, dtype=np.float64)
    rest = population - n
    log_posterior = (
        _log_choose(float(rest), unseen_ones)
        + special.betaln(unseen_ones + right + 1.0, rest - unseen_ones + n - right + 1.0)
        - special.betaln(right + 1.0, n - right + 1.0)
    )
    plausible = np.flatnonzero(-math.log(population + 1.0) - log_posterior < -math.log(alpha))
    if plausible.size == 0:  # cannot be: the posterior's mode is above the uniform prior
        return lowest, highest
    return right + int(plausible[0]), right + int(plausible[-1])


def _log_choose(n: float, k: Array) -> Array:
    result: Array = -special.betaln(n - k + 1.0, k + 1.0) - math.log(n + 1.0)
    return result


def kelly_stakes(d: Array, claimed: Array, *, seen: float) -> Array:
    """Stakes that make log-wealth grow fastest if documents go on as those before did.

    With p1, p0, p-1 the chances of a loss (d = 1), no flip and a gain (d = -1), estimated from the
    documents before, and mu the claimed mean, the stake x maximises E log(1 - x (d - mu)):

        -p1 (1 - mu) / (1 - x (1 - mu)) + p0 mu / (1 + x mu) + p-1 (1 + mu) / (1 + x (1 + mu)) = 0,

    a quadratic (J. L. Kelly, Bell System Technical Journal 35, 1956, 917-926). It is 0 where what
    was seen is no less than what is claimed.

    Args:
        d: 1, 0 or -1 per document, in the order drawn, shape (n,).
        claimed: mu_i of the claim that one bets against, from what came before document i.
        seen: flips of each kind that count as seen before any is. Few, and a lossless candidate is
            believed soon; more than none, so that one flip does not cost everything.
    """
    spread = np.arange(d.shape[0], dtype=np.float64) + 2.0 * seen + 1.0
    lost = (before((d > 0.0).astype(np.float64)) + seen) / spread
    won = (before((d < 0.0).astype(np.float64)) + seen) / spread
    mu = np.clip(claimed, -0.999, 0.999)
    a = -mu * (1.0 - mu * mu)
    b = (
        -lost * (1.0 - mu) * (1.0 + 2.0 * mu)
        + 2.0 * (1.0 - lost - won) * mu * mu
        - won * (1.0 + mu) * (1.0 - 2.0 * mu)
    )
    gain = mu - (lost - won)
    root = np.sqrt(np.maximum(0.0, b * b - 4.0 * a * gain))
    # The root next to 0, in the form that stays exact where the quadratic's first term vanishes.
    stake = 2.0 * gain / np.maximum(root - b, 1e-300)
    return np.where(gain > 0.0, np.clip(stake, 0.0, 1.0), 0.0)
