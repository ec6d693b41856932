"""Log-likelihoods and other means: evidence about sigma_N, robust to losses not yet seen.

The claim "sigma_N >= m" says that the documents' excesses T_i (excess.py) sum to 0 or more over
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

import numpy as np

from evalguard.stats.sequential.betting import (
    Array,
    before,
    just_deniable,
    log_wealth,
    remaining_stake,
)
from evalguard.stats.sequential.excess import Excess

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
