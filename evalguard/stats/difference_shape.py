"""Shape of per-document differences: how they spread, how heavy their tails are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from evalguard.stats.bootstrap import MOST_ENUMERATED, subset_sums
from evalguard.stats.probability import Array, exact_sum, mean_moments, moments, normal_tail_mean

_BINS = 41
_INNER = (0.005, 0.995)  # of the documents that differ: what lies beyond goes into the end bins
_MOST_QUANTILES = 160
_MOST_SHARES = 60
_TOP = 0.01
_LARGEST = 1e100  # squares of smaller ones do not overflow

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceShape:
    """How the differences of n documents are distributed, in the unit of the differences.

    Attributes:
        n: documents with a usable difference; ``moved`` those whose difference is not 0.
        mean, sd: of all n; sd with n - 1 in the denominator, 0.0 for one document.
        edges: of the histogram's bins, ascending, one more than ``counts``; () if none moved.
        counts: documents in each bin, of those that moved. The first and the last bin also hold
            what lies outside: ``below`` and ``above`` documents.
        quantiles: (quantile of the standard normal, difference) at the plotting positions
            (i - 1/2) / n, ascending, thinned in the middle.
        shares: (share of the documents, share of the sum of absolute differences), of the documents
            that differ most, ascending from the first one to all.
        top_share: share of all change that the most changed 1% of the documents make up, at least
            one; ``top`` says how many these are.
    """

    n: int
    moved: int
    mean: float
    sd: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int
    above: int
    quantiles: Points
    shares: Points
    top: int
    top_share: float


def difference_shape(values: NDArray[np.float64]) -> DifferenceShape | None:
    """Describe differences, shape (n,), positive is worse; None where no document moved.

    Differences that are not finite, or beyond 1e100, are left out.
    """
    finite = np.sort(values[np.abs(values) < _LARGEST])
    moved = finite[finite != 0.0]
    if moved.size == 0:
        return None
    low, high = _inner(moved)
    edges = _edges(low, high)
    counts = np.histogram(np.clip(moved, edges[0], edges[-1]), edges)[0]
    sizes = np.cumsum(np.sort(np.abs(finite))[::-1])
    top = max(1, int(_TOP * finite.size))
    return DifferenceShape(
        n=int(finite.size),
        moved=int(moved.size),
        mean=float(finite.mean()),
        sd=float(finite.std(ddof=1)) if finite.size > 1 else 0.0,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        below=int(np.count_nonzero(moved < low)),
        above=int(np.count_nonzero(moved > high)),
        quantiles=_quantiles(finite),
        shares=_shares(sizes),
        top=top,
        top_share=float(sizes[top - 1] / sizes[-1]),
    )


def _inner(moved: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the inner differences, with 0 among them; of few documents none lies outside."""
    low = float(np.quantile(moved, _INNER[0], method="lower"))
    high = float(np.quantile(moved, _INNER[1], method="higher"))
    return min(low, 0.0), max(high, 0.0)


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Equal bins over the inner differences; 0 is between two of them, so none has both signs."""
    width = max((high - low) / (_BINS - 1), float(np.finfo(np.float64).tiny))
    first, last = min(np.floor(low / width), -1.0), max(np.ceil(high / width), 1.0)
    edges: NDArray[np.float64] = np.arange(first, last + 1) * width
    return edges


def _quantiles(ascending: NDArray[np.float64]) -> Points:
    n = ascending.size
    places = ndtri((np.arange(n) + 0.5) / n)
    steps = np.linspace(places[0], places[-1], _MOST_QUANTILES)
    chosen = np.unique(np.searchsorted(places, steps).clip(0, n - 1))
    return tuple(zip(places[chosen].tolist(), ascending[chosen].tolist(), strict=True))


def _shares(sizes: NDArray[np.float64]) -> Points:
    n = sizes.size
    counts = np.unique(np.geomspace(1, n, _MOST_SHARES).round().astype(np.int64))
    part = sizes[counts - 1] / sizes[-1]
    return tuple(zip((counts / n).tolist(), part.tolist(), strict=True))


# Tails: how much of a drift comes from how few documents, and whether its t interval holds.


# Flagged where so few documents carry more than half of the drift, and at least this many times
# what documents with normal scatter would: a small drift in light noise is not a heavy tail.
_HALF = 0.5
_TIMES_NORMAL = 2.0
_COCHRAN = 25.0
_FEWEST = 30.0
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
    return UnequalWeights(effective=effective, needed=max(_FEWEST, variation / _ACCURACY**2))


# Typical values: the drifts that a sign flip of few units does not reject.
#
# Taking away a drift delta leaves unit g with S_g - delta w_g; those flipped, F, sum to 0 or less
# exactly where delta is at least r_F = sum_F S / sum_F w. So the ends of the interval are order
# statistics of r_F over all sets F of units (J. A. Hartigan, JASA 64, 1969, 1303-1317), without
# any search.


def typical_interval(values: Array, weights: Array, *, confidence: float) -> tuple[float, float]:
    """The interval of sum S / sum w from sign flips of the units, exact for symmetric ones.

    Fewer units than the confidence asks for (6 for 95%) leave it open on both sides.

    Args:
        values, weights: float64, shape (n,), n <= 20; no weight below 0.
    """
    return -_far_end(-values, weights, confidence), _far_end(values, weights, confidence)


def _far_end(values: Array, weights: Array, confidence: float) -> float:
    """The largest delta for which more than (1 - confidence) / 2 of all 2^n sets sum to 0 or more.

    Sets without weight do so whatever delta is, if their values do; the empty one is one of them.
    """
    assert values.shape[0] <= MOST_ENUMERATED
    order = np.lexsort((weights, values))  # so that the order of the units changes no bit
    values, weights = values[order], weights[order]
    sums, totals = subset_sums(values), subset_sums(weights)
    weighty = totals > 0.0
    always = int(np.count_nonzero(sums[~weighty] >= 0.0))
    wanted = math.floor((1.0 - confidence) / 2.0 * sums.shape[0]) + 1 - always
    if wanted <= 0:
        return math.inf
    ratios = np.sort(sums[weighty] / totals[weighty])
    return float(ratios[-wanted]) if wanted <= ratios.shape[0] else -math.inf
