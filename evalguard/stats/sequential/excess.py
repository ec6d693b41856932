"""Excess: how far each document moves the drift of all N beyond a margin.

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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.paired_scores import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import MarginUnit
from evalguard.stats.moments import moments
from evalguard.stats.sequential.betting import Array
from evalguard.stats.sigma_scale import SigmaScale


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
