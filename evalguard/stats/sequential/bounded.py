"""Log-likelihoods and other means: evidence about sigma_N, robust to losses not yet seen.

The claim "sigma_N >= m" says that the documents' excesses T_i (excess.py) sum to 0 or more over
all N; it is bet against as in betting.py. That asks for a bound: no document's T_i is above B. A
document may lose without limit, so B is an assumption, and it is printed with the verdict:

B = max(2 standard deviations of the base's values, 3 times the largest loss seen + 3^2 times the
largest influence on the base's standard error seen):

no document that was not asked is three times as far out as those that were, in its loss or in
the base's own score, whose square is its influence. Where the margin's unit is fixed (points, a
share of a perplexity, a base that is known) no influence makes room, and the largest move to
either side counts: with tails to both sides and 500 documents, 14% of orders were wrong without.

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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import MarginUnit
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.stats.drift import Drift, estimate_drift
from evalguard.stats.probability import Moments, SigmaScale, moments
from evalguard.stats.sequential.flips import (
    Array,
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

    def worst(self, *, against_less: bool) -> tuple[float, float]:
        """The most that a document is allowed to lose, and the most that one lost so far.

        In the unit of a document's own values. The excess over the margin counts, which all
        but equals the loss.

        Args:
            against_less: what a document gains instead: that speaks against "above".
        """
        bound, sign = (self._less, -1.0) if against_less else (self._more, 1.0)
        seen = float(np.max(sign * self._of.drifts))
        return bound * self._of.mean_weight, seen * self._of.mean_weight

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


# Evidence: what documents drawn so far deny about the sigma of all of them.


Denied = Callable[[float], bool]

_FARTHEST = 1e9
_HALVINGS = 60


class Evidence(Protocol):
    """Log-wealth of bets against claims about sigma_N, the sigma of all N documents.

    ``reserved`` is the chance of error that was spent beside the bets: a claim may be denied at
    level alpha where its log-wealth is at least log(1 / (alpha - reserved)).
    """

    reserved: float

    def against_more(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or more"; grows with ``margin``."""

    def against_less(self, margin: float) -> float:
        """Log-wealth against "sigma_N is ``margin`` or less"; falls with ``margin``."""


def needed(evidence: Evidence, alpha: float) -> float:
    """The log-wealth that denies a claim at level alpha."""
    return -math.log(alpha - evidence.reserved)


def upper_end(evidence: Evidence, alpha: float, *, start: float) -> float:
    """The smallest margin that sigma_N is denied to reach; infinite where there is none.

    Args:
        start: a margin that is denied or close to one, where the search begins.
    """
    enough = needed(evidence, alpha)
    return _border(lambda margin: evidence.against_more(margin) >= enough, start)


def lower_end(evidence: Evidence, alpha: float, *, start: float) -> float:
    """The largest margin that sigma_N is denied to stay at or below; else minus infinity."""
    enough = needed(evidence, alpha)
    return -_border(lambda margin: evidence.against_less(-margin) >= enough, -start)


def _border(denied: Denied, start: float) -> float:
    """Where ``denied`` turns true, from below; a point that is denied."""
    step, low, high = 1.0, start, start
    if denied(start):
        while denied(low):
            if step > _FARTHEST:
                return -math.inf
            low, high, step = low - step, low, 2.0 * step
    else:
        while not denied(high):
            if step > _FARTHEST:
                return math.inf
            low, high, step = high, high + step, 2.0 * step
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if denied(middle) else (middle, high)
    return high


# Excess: how far each document moves the drift of all N beyond a margin.
#
# The full run's sigma is m or more exactly where D_N >= g(u_N): D_N is the drift, u_N the base's
# standard error over all N documents and g(u) = m u, on a log scale +-log(1 +- m u). With u_N
# estimated by u from the documents so far, T = D - g(u) is to first order the mean of
#
# T_i = (d_i - g w_i) / mean(w) - g'(u) u I_i
#
# (all w_i = 1 for a mean), where I_i is the influence of document i on log u: with e_i = a_i - R
# w_i the residual of the base's value a_i from its mean or ratio R,
#
# I_i = (e_i^2 / mean(e^2) - 1) / 2 - (w_i / mean(w) - 1) - mean(e w) / mean(e^2) e_i / mean(w)
#
# (F. R. Hampel, JASA 69, 1974, 383-393; the last two terms vanish for a mean).
#
# A margin in another unit has another yardstick in place of u. Points are one fixed amount, and so
# is a share of a perplexity, whose drift is on a log scale: no influence. A share m of a mean or
# ratio |R| has I_i = e_i / (R mean(w)), so that T_i = (d_i -+ m a_i) / mean(w): linear, and not
# only to first order.


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """The documents so far, in the order drawn, ready to be held against a margin.

    Attributes:
        drifts: d_i / mean(w), float64, shape (n,); their mean is the drift D.
        weights: w_i / mean(w).
        influences: I_i on the unit's logarithm, 0 where the unit is known.
        unit: that margins are counted in: u, 1 for points, |R| for shares; above 0.
        stderr: u, the base's standard error over all N documents, estimated or known.
        scatter: the base's standard deviation per document, in the unit of ``drifts``.
        log_sign: as of ``Drift``.
        mean_weight: from this scale to that of one document's values (nats, bits).
    """

    drifts: Array
    weights: Array
    influences: Array
    unit: float
    stderr: float
    scatter: float
    log_sign: int
    mean_weight: float

    @property
    def sigma(self) -> float:
        """The drift so far in ``unit``: sigma of all N documents, points, or a share of R."""
        amount = float(np.mean(self.drifts))
        if self.log_sign:
            amount = self.log_sign * float(np.expm1(self.log_sign * amount))
        return amount / self.unit

    def of_the_unit(self, margin: float) -> Array:
        """The part of T_i that is document i's influence on the unit."""
        slope = margin
        if self.log_sign:
            slope = margin / max(1.0 + self.log_sign * margin * self.unit, 1e-300)
        return -slope * self.unit * self.influences

    def beyond(self, margin: float) -> Array | None:
        """T_i at a margin in units; None where no drift is that far (perplexity 0)."""
        amount, slope = margin * self.unit, margin
        if self.log_sign:
            inside = 1.0 + self.log_sign * amount
            if inside <= 0.0:
                return None
            amount, slope = self.log_sign * math.log(inside), margin / inside
        return self.drifts - amount * self.weights - slope * self.unit * self.influences


def excess(
    paired: PairedScores,
    order: NDArray[np.int64],
    population: int,
    *,
    base_of_all: ScoreTable | None = None,
    unit: MarginUnit = "sigma",
) -> Excess:
    """Of documents drawn so far.

    Args:
        paired: their scores, n >= 2.
        order: rows of ``paired`` in the order drawn, shape (n,).
        population: N.
        base_of_all: the base's scores of all N documents, where they are known.
        unit: of the margins.
    """
    base, rows = paired.base, order
    bits = 1.0 / math.log(2.0) if base.aggregation == "bits_per_byte" else 1.0
    weights = np.ones(base.n) if base.weights is None else base.weights
    mean_weight = float(np.mean(weights))
    rate = moments(base.values, base.weights)
    residuals = base.values - rate.point * weights
    log_sign = SigmaScale.log_sign_of(base)
    whole = base if base_of_all is None else base_of_all
    stderr = unit_of(whole) * (math.sqrt(base.n / population) if base_of_all is None else 1.0)
    size, influences = 1.0, np.zeros(base.n)
    if unit == "sigma":
        size = stderr
        if base_of_all is None:
            influences = _influences(residuals, weights, mean_weight)
    elif unit == "relative" and not log_sign:
        size = abs(moments(whole.values, whole.weights).point) * bits
        if base_of_all is None and size > 0.0:
            influences = residuals / (rate.point * mean_weight)
    return Excess(
        drifts=(paired.d * bits / mean_weight)[rows],
        weights=(weights / mean_weight)[rows],
        influences=influences[rows],
        unit=size,
        stderr=stderr,
        scatter=rate.stderr * bits * math.sqrt(base.n),
        log_sign=log_sign,
        mean_weight=mean_weight,
    )


def _influences(residuals: Array, weights: Array, mean_weight: float) -> Array:
    square = float(np.mean(np.square(residuals)))
    if square == 0.0:
        return np.zeros_like(residuals)
    tilt = float(np.mean(residuals * weights)) / square
    return (
        (np.square(residuals) / square - 1.0) / 2.0
        - (weights / mean_weight - 1.0)
        - tilt * residuals / mean_weight
    )


# The drift of all N documents, estimated from those drawn so far.


def drift_of_all(paired: PairedScores, population: int, *, confidence: float, unit: float) -> Drift:
    """The drift of the documents so far, with the standard errors that all N would have.

    Standard errors of n documents are sqrt(N / n) times those of N; sigma is counted in the latter.

    Args:
        unit: the base's standard error over all N on the scale of the drift.
    """
    drift = estimate_drift(paired, confidence=confidence)
    shrink = math.sqrt(paired.base.n / population)
    stderr = drift.base.stderr * (unit / drift.unit) if drift.unit > 0.0 else 0.0
    return replace(
        drift,
        base=Moments(point=drift.base.point, stderr=stderr),
        candidate=Moments(point=drift.candidate.point, stderr=drift.candidate.stderr * shrink),
        paired_stderr=drift.paired_stderr * shrink,
        estimate=replace(drift.estimate, stderr=drift.estimate.stderr * shrink),
        unit=unit,
    )


def unit_of(table: ScoreTable) -> float:
    """The base's standard error over a table's documents, on the scale of its drift."""
    stderr = moments(table.values, table.weights).stderr
    return stderr / math.log(2.0) if table.aggregation == "bits_per_byte" else stderr
