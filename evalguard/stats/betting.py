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

The full run's sigma is m or more exactly where D_N >= g(u_N): D_N is the drift, u_N the base's
standard error over all N documents and g(u) = m u, on a log scale +-log(1 +- m u). With u_N
estimated by u from the documents so far, T = D - g(u) is to first order the mean of

    T_i = (d_i - g w_i) / mean(w) - g'(u) u I_i

(all w_i = 1 for a mean), where I_i is the influence of document i on log u: with e_i = a_i - R
w_i the residual of the base's value a_i from its mean or ratio R,

    I_i = (e_i^2 / mean(e^2) - 1) / 2 - (w_i / mean(w) - 1) - mean(e w) / mean(e^2) e_i / mean(w)

(F. R. Hampel, JASA 69, 1974, 383-393; the last two terms vanish for a mean).

A margin in another unit has another yardstick in place of u. Points are one fixed amount, and so
is a share of a perplexity, whose drift is on a log scale: no influence. A share m of a mean or
ratio |R| has I_i = e_i / (R mean(w)), so that T_i = (d_i -+ m a_i) / mean(w): linear, and not
only to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import Moments, moments
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import MarginUnit, SigmaScale
from evalguard.stats.drift import Drift, estimate_drift

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


def unit_of(table: ScoreTable) -> float:
    """The base's standard error over a table's documents, on the scale of its drift."""
    stderr = moments(table.values, table.weights).stderr
    return stderr / math.log(2.0) if table.aggregation == "bits_per_byte" else stderr
