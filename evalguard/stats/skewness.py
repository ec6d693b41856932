"""Tails: how much of a drift comes from how few documents, and whether its t interval holds.

Where most documents lose a little and a few gain much, a sample without enough of those few looks
worse than it is, and scatters less: Student's t calls an unchanged candidate really worse far too
often. Where such a tail is seen, and where a few texts or clusters weigh nearly all, the estimate
that decides is the more careful of t and of those below: each end of the interval where the wider
one has it, and the larger p-value, so that interval and p-value agree.

- A long tail: Hall's transformation of t. With lambda = G1 / (3 sqrt n), g(t) = t + lambda t^2 +
  lambda^2 t^3 / 3 + lambda / 2 is increasing, and follows Student's t more closely than t itself
  (P. Hall, J. R. Stat. Soc. B 54, 1992, 221-228). Of the documents that differ alone: others say
  nothing of the tail, and among them a short one looks long enough.
- What a sample has not seen of it: such a sample has too few of the tail more often than too many,
  and its skewness is too small then. So Hall's t of the sample with *k more documents* like its
  most extreme one. k is twice Cochran's number over the number of documents, for the skewness that
  they have without that one (one alone, as t with 3 degrees of freedom has it, is no tail); less
  where the other tail is as long; and it grows with the fourth power of the normal quantile of the
  level, as a test of many metrics looks further out. It is at most 4.
- Clusters of answers that are right or wrong: a document wins one or loses one, so that skewness is
  the drift itself where no cluster wins more than another loses. How long a tail is, is measured
  from 0 there, and elsewhere from the drift.
- Unequal weights: the bias-reduced (CR2) standard error sqrt(sum_g e_g^2 / (1 - h_g)) / sum w, with
  h_g = w_g / sum w, and Satterthwaite's degrees of freedom under independent documents (R. M. Bell,
  D. F. McCaffrey, Survey Methodology 28, 2002, 169-181). Used where few long texts or large
  clusters weigh most. Equal weights give the usual standard error and n - 1 again.

How often that keeps its word, and what it costs: ``benchmarks/skewed_gate.py``; each part of it
alone: ``benchmarks/corrections.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import Array, exact_sum, mean_moments, moments
from evalguard.stats.estimate import (
    Estimate,
    find_root,
    normal_quantile,
    normal_tail_mean,
    normal_upper_tail,
    scatters,
    t_critical,
    t_estimate,
    t_upper_tail,
)

# Flagged where so few documents carry more than half of the drift, and at least this many times
# what documents with normal scatter would: a small drift in light noise is not a heavy tail.
_HALF = 0.5
_TIMES_NORMAL = 2.0
_COCHRAN = 25.0
_FEWEST_SKEWED = 30.0
_ACCURACY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTail:
    """The most affected 1% of documents, at least one.

    Attributes:
        count: how many documents these are.
        share: their part of the total drift; above 1 where the others point the other way.
        normal_share: the part they would have if d were normal with this mean and scatter.
    """

    count: int
    share: float
    normal_share: float

    @property
    def heavy(self) -> bool:
        """Whether a reader should know about it."""
        return self.share > max(_HALF, _TIMES_NORMAL * self.normal_share)


def worst_documents(d: NDArray[np.float64]) -> ScoreTail:
    """The tail of per-document differences, float64, shape (n,), n >= 2.

    "Most affected" is in the direction of the total: the largest d of a drift to the worse, the
    smallest of an improvement. All shares are 0 where the total is 0.
    """
    n = d.shape[0]
    count = max(1, n // 100)
    total = exact_sum(d)
    if total == 0.0:
        return ScoreTail(count=count, share=0.0, normal_share=0.0)
    along = d if total > 0.0 else -d
    worst = exact_sum(np.partition(along, n - count)[-count:])
    spread = mean_moments(d).stderr * math.sqrt(n)
    normal = count / n * (1.0 + normal_tail_mean(count / n) * spread * n / abs(total))
    return ScoreTail(count=count, share=worst / abs(total), normal_share=normal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewness:
    """How lopsided per-document differences are.

    Attributes:
        value: G1 = mean e^3 / (mean e^2)^1.5 of the residuals e about the drift; above 0 the long
            tail is that of documents that got much worse.
        needed: documents from which on a t interval of 95% is wrong in at most 6% of samples,
            25 G1^2 (W. G. Cochran, Sampling Techniques, 1977, section 2.15).
    """

    value: float
    needed: float


def skewness(d: NDArray[np.float64], weights: NDArray[np.float64] | None) -> Skewness:
    """Skewness of per-document differences about their mean, or about their ratio to the weights.

    Arrays are float64, shape (n,), n >= 2; without any scatter it is 0.
    """
    drift = moments(d, weights).point
    residuals = d - drift * (1.0 if weights is None else weights)
    scale = float(np.max(np.abs(residuals)))
    if scale == 0.0 or not math.isfinite(scale):
        return Skewness(value=0.0, needed=0.0)
    scaled = residuals / scale
    n = d.shape[0]
    value = exact_sum(scaled**3) / n / (exact_sum(scaled**2) / n) ** 1.5
    return Skewness(value=value, needed=_COCHRAN * value * value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalWeights:
    """How much a few long documents weigh in a ratio of sums.

    Attributes:
        effective: documents of equal weight that would count as much, (sum w)^2 / sum w^2.
        needed: documents from which on the ratio estimator's interval is trusted: 30, and so many
            that the mean weight is known to 10% (Cochran, Sampling Techniques, 1977, section 6.3).
    """

    effective: float
    needed: float


def unequal_weights(weights: NDArray[np.float64]) -> UnequalWeights:
    """Inequality of weights, float64, shape (n,), none negative, with a sum above 0."""
    n = weights.shape[0]
    shares = weights / exact_sum(weights)
    effective = 1.0 / exact_sum(shares * shares)
    variation = max(0.0, n / effective - 1.0)  # squared coefficient of variation
    return UnequalWeights(effective=effective, needed=max(_FEWEST_SKEWED, variation / _ACCURACY**2))


SKEW = "-skew"
CR2 = "-cr2"
# Chosen among others by size and power over 22 populations: benchmarks/skewed_gate.py.
_RATE, _MOST = 2.0 * 25.0, 4.0
_COCHRANS_Z = 1.959963984540054  # of his rule's intervals of 95%
_FURTHEST_Z = 37.0  # no smaller p-value is a double
# A sample skewness below so many of its standard errors in normal documents is no tail.
_BEYOND_CHANCE = 1.5
_LONGER = 1.0 + 1e-9  # than the other way, by more than rounding


def careful_t(
    estimate: Estimate,
    values: Array,
    weights: Array | None,
    factor: float,
    *,
    df: float | None = None,
    differing: Differing | None = None,
    flips: bool = False,
) -> Estimate:
    """The more careful of a t estimate and of the corrected ones that its documents ask for.

    Args:
        estimate: of the mean of ``values``, or of their ratio to ``weights``.
        values, weights: of the documents, or sums over clusters of them; float64, shape (n,).
        factor: from the unit of ``values`` to that of the estimate.
        df: degrees of freedom of the estimate's standard error; None for n - 1.
        differing: the units that differ, where ``values`` are residuals of several tasks; by
            default those whose value is not 0.
        flips: whether the units are clusters of documents that are right or wrong.

    Returns:
        The joined estimate, whose method ends in "-skew" or "-cr2" or both; the estimate as it is
        where the documents ask for no correction.
    """
    if not scatters(estimate):
        return estimate
    if differing is None:
        differing = find_differing(values, weights)
    joined = _corrected_for_tails(estimate, _find_tails(differing, flips), factor)
    if weights is not None and df is None and _lopsided(weights):
        joined = _join(joined, _cr2(estimate, values, weights, factor), CR2)
    return joined


def uncorrected(method: str) -> str:
    """The method without its corrections."""
    return method.removesuffix(CR2).removesuffix(SKEW)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Differing:
    """The units, documents or clusters of them, that differ, about their own drift.

    Attributes:
        values, weights: float64, shape (m,).
        residuals: the same, value - drift of these * weight.
        share: their part of the weights of all units.
        spread: their standard error as a part of that of all units.
    """

    values: Array
    residuals: Array
    weights: Array
    share: float
    spread: float


def find_differing(values: Array, weights: Array | None) -> Differing | None:
    """The units whose value is not 0; None of fewer than 3, or without weight or scatter."""
    carried = np.ones_like(values) if weights is None else weights
    rows = values != 0.0
    own, total = exact_sum(carried[rows]), exact_sum(carried)
    if np.count_nonzero(rows) < _FEWEST or own <= 0.0:
        return None
    residuals = values[rows] - exact_sum(values[rows]) / own * carried[rows]
    everyone = values - exact_sum(values) / total * carried
    return differing_from(values[rows], residuals, carried[rows], everyone, share=own / total)


def differing_from(
    values: Array, residuals: Array, weights: Array, everyone: Array, *, share: float
) -> Differing | None:
    """Those that differ, with the residuals of every unit, shape (n,)."""
    if residuals.shape[0] < _FEWEST:
        return None
    own, of_all = (_sum_of_squares_of_n(sample) for sample in (residuals, everyone))
    if own <= _SCATTER * of_all or not math.isfinite(own):
        return None
    return Differing(
        values=values,
        residuals=residuals,
        weights=weights,
        share=share,
        spread=math.sqrt(own / of_all),
    )


_FEWEST = 3  # two have no skewness
_SCATTER = 1e-24  # of that of all units: what rounding leaves of equal differences


def _sum_of_squares_of_n(residuals: Array) -> float:
    n: int = residuals.shape[0]
    return n / (n - 1) * exact_sum(residuals * residuals)


def _corrected_for_tails(
    estimate: Estimate, tails: tuple[_Tail | None, _Tail | None], factor: float
) -> Estimate:
    """Each end by the tail that it points along, by one rule for both sides."""
    gains, losses = tails
    if gains is None and losses is None:
        return estimate
    method = estimate.method + SKEW
    low, high, p_value = estimate.low, estimate.high, estimate.p_value
    z = -normal_quantile((1.0 - estimate.confidence) / 2.0)
    if gains is not None:
        tests = gains.tests(estimate, factor, z)
        low = min(low, *(test.low for test in tests))
        p_value = max(p_value, gains.p_value(estimate, factor))
    if losses is not None:
        tests = losses.tests(_mirrored(estimate), factor, z)
        high = max(high, *(-test.low for test in tests))
    return replace(
        estimate, low=low, high=high, p_value=p_value, method=method, interval_method=method
    )


def _mirrored(estimate: Estimate) -> Estimate:
    return replace(estimate, point=-estimate.point, low=-estimate.high, high=-estimate.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """A long tail of gains, of units that differ.

    Attributes:
        count, share, spread: of these units, see ``Differing``.
        powers: the sums of e^a w^b over them by (a, b), e in units of the largest one and w in
            units of their sum.
        extreme, weight: the residual and the weight of the most extreme one, in these units.
        unit: the largest residual over the sum of weights: what e = 1 adds to their drift.
        rate: how many more like it so few should have had, at 95%.
    """

    count: int
    share: float
    spread: float
    powers: dict[tuple[int, int], float]
    extreme: float
    weight: float
    unit: float
    rate: float

    def tests(self, estimate: Estimate, factor: float, z: float) -> list[Estimate]:
        """Hall's t as the sample is, and with more, at the level of z."""
        estimates = [_hall(*self._with_more(estimate, factor, 0.0))]
        extra = min(_MOST, self.rate * max(1.0, z / _COCHRANS_Z) ** 4)
        if extra:
            estimates.append(_hall(*self._with_more(estimate, factor, extra)))
        return estimates

    def p_value(self, estimate: Estimate, factor: float) -> float:
        """The smallest level at which all tests of that level see a drift to the worse."""

        def excess(z: float) -> float:
            largest = max(test.p_value for test in self.tests(estimate, factor, z))
            return largest - normal_upper_tail(z)

        at = excess(_COCHRANS_Z)
        if at >= 0.0:
            return at + normal_upper_tail(_COCHRANS_Z)
        if excess(_FURTHEST_Z) <= 0.0:
            return normal_upper_tail(_FURTHEST_Z)
        return normal_upper_tail(find_root(excess, _COCHRANS_Z, _FURTHEST_Z))

    def without_furthest(self) -> float:
        """G1 / sqrt m of the others; 0 where they don't scatter."""
        if 1.0 - self.weight <= 0.0:
            return 0.0
        _, squares, cubes = self._about_their_mean(-1.0)
        return cubes / squares**1.5 if squares > _SCATTER else 0.0

    def _with_more(
        self, estimate: Estimate, factor: float, more: float
    ) -> tuple[Estimate, float, float]:
        """Point and standard error of the sample with so many more, its G1 / sqrt m, and its df."""
        m = self.count
        moved, squares, cubes = self._about_their_mean(more)
        counts = math.sqrt((m + more) / (m + more - 1.0) * (m - 1.0) / m)
        spread = self.spread * math.sqrt(squares / self.powers[2, 0]) * counts
        joined = replace(
            estimate,
            point=estimate.point + moved * self.unit * self.share * factor,
            stderr=estimate.stderr * spread / (1.0 + more * self.weight),
        )
        return joined, cubes / squares**1.5, m + more - 1.0

    def _about_their_mean(self, more: float) -> tuple[float, float, float]:
        """How far so many more move the drift, and the sums of squares and cubes about it.

        By the formulas of ``ratio_moments``: k units like number i move the drift by
        k e_i / (sum w + k w_i).
        """
        of = self.powers
        moved = more * self.extreme / (1.0 + more * self.weight)
        last = self.extreme - moved * self.weight
        squares = of[2, 0] - 2.0 * moved * of[1, 1] + moved**2 * of[0, 2]
        cubes = of[3, 0] - 3.0 * moved * of[2, 1] + 3.0 * moved**2 * of[1, 2] - moved**3 * of[0, 3]
        return moved, squares + more * last**2, cubes + more * last**3


def _find_tails(differing: Differing | None, flips: bool) -> tuple[_Tail | None, _Tail | None]:
    """The tail of gains, and that of losses turned round; one at most is more than chance."""
    if differing is None:
        return None, None
    m, total = differing.residuals.shape[0], exact_sum(differing.weights)
    largest = float(np.max(np.abs(differing.residuals)))
    e, w = differing.residuals / largest, differing.weights / total
    skew = exact_sum(e**3) / exact_sum(e * e) ** 1.5  # G1 / sqrt m
    chance = math.sqrt(6.0 * (m - 2) / ((m + 1) * (m + 3)))
    if abs(skew) * math.sqrt(m) <= _BEYOND_CHANCE * chance:
        return None, None
    towards = 1.0 if skew < 0.0 else -1.0
    e, sizes = towards * e, towards * (differing.values if flips else differing.residuals)
    opposite = float(np.max(sizes))
    if flips and -float(np.min(sizes)) <= opposite * _LONGER:
        return None, None
    furthest = np.flatnonzero(e == np.min(e))
    position = int(furthest[np.argmin(w[furthest])])
    tail = _Tail(
        count=m,
        share=differing.share,
        spread=differing.spread,
        powers={(a, b): exact_sum(e**a * w**b) for a, b in _POWERS},
        extreme=float(e[position]),
        weight=float(w[position]),
        unit=largest / total,
        rate=0.0,
    )
    longest = -float(np.min(np.delete(sizes, position)))
    if longest > opposite:
        without = min(0.0, tail.without_furthest())
        tail = replace(tail, rate=_RATE * without * without * (1.0 - opposite / longest))
    return (tail, None) if skew < 0.0 else (None, tail)


_POWERS = ((2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (0, 3))
_STRAIGHT = 1e-8  # below it the cube root has fewer digits than the correction


def _hall(estimate: Estimate, skew: float, df: float) -> Estimate:
    """Student's t of Hall's g(t): interval by the inverse of g, p-value by g.

    Args:
        skew: G1 over sqrt n.
    """
    bend = skew / 3.0
    t = estimate.point / estimate.stderr
    critical = t_critical(estimate.confidence, df)
    # g(t) = ((1 + lambda t)^3 - 1) / (3 lambda) + lambda / 2, multiplied out
    bent = t * (1.0 + bend * t * (1.0 + bend * t / 3.0)) + bend / 2.0
    return replace(
        estimate,
        low=estimate.point - estimate.stderr * _unbent(critical, bend),
        high=estimate.point - estimate.stderr * _unbent(-critical, bend),
        p_value=t_upper_tail(bent, df),
    )


def _unbent(x: float, bend: float) -> float:
    """The t with g(t) = x."""
    if abs(bend) < _STRAIGHT:
        return x
    cube = 1.0 + 3.0 * bend * (x - bend / 2.0)
    return (math.copysign(abs(cube) ** (1.0 / 3.0), cube) - 1.0) / bend


def _join(one: Estimate, other: Estimate, suffix: str) -> Estimate:
    method = one.method + suffix
    return replace(
        one,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        p_value=max(one.p_value, other.p_value),
        method=method,
        interval_method=method,
    )


def _lopsided(weights: Array) -> bool:
    """Whether weights differ, and too much for so few; no CR2 where one alone weighs anything."""
    alike = bool((weights == weights[0]).all())
    alone = bool((weights / exact_sum(weights) == 1.0).any())
    return not (alike or alone) and unequal_weights(weights).needed > weights.shape[0]


def _cr2(estimate: Estimate, values: Array, weights: Array, factor: float) -> Estimate:
    """CR2 standard error and Satterthwaite's degrees of freedom of a ratio of sums.

    With shares h and q = h^2 / (1 - h) the degrees of freedom are
    1 / (sum h^2 + (sum q)^2 - sum q^2).
    """
    total = exact_sum(weights)
    shares = weights / total
    rest = 1.0 - shares
    residuals = values - moments(values, weights).point * weights
    stderr = math.sqrt(exact_sum(residuals * residuals / rest)) / total * factor
    pulls = shares * shares / rest
    off_diagonal = exact_sum(pulls) ** 2 - exact_sum(pulls * pulls)
    df = 1.0 / (exact_sum(shares * shares) + off_diagonal)
    return t_estimate(
        estimate.point, stderr, df=df, confidence=estimate.confidence, method=estimate.method
    )
