"""The sign-flip permutation test and its interval, also of few and of tied differences.

An unchanged candidate is as likely to win a document by d as to lose it by d: every difference
could as well have had the other sign.

Taking away a drift delta leaves unit g with S_g - delta w_g; those flipped, F, sum to 0 or less
exactly where delta is at least r_F = sum_F S / sum_F w. So the ends of the interval are order
statistics of r_F over all sets F of units (J. A. Hartigan, JASA 64, 1969, 1303-1317), without
any search.

Student's t takes differences as normal. Few of them may be anything: two documents that each
lose the same amount do not scatter, and t calls that certain, while an unchanged candidate that
wins or loses that amount by chance does it once in four times. What holds of every distribution
that is symmetric about 0 is that the signs of the differences are those of a fair coin, given
their sizes (R. A. Fisher, The Design of Experiments, 1935, section 21). So the smallest one-
sided p-value that m differences can have is 2^-m, and where fewer than 20 units differ, the t
test is joined with the sign-flip test of them: the larger p-value of the two, so that no
symmetric null is called real more often than the level says. The same where many differ, and few
weigh nearly all: a text as long as all others together has hardly a residual of its own, and t
takes its drift for certain.

The interval is joined likewise. Of fewer than 20 units with the drifts that a sign flip does not
reject (``typical_values``), which are all where 2^-n is above the level: of fewer than 6 at 95%.
Of more, few of which differ, with an end pulled back to 0 where the signs do not grant that 0
lies beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from evalguard.core.moments import Array
from evalguard.stats.estimate import Estimate, scatters
from evalguard.stats.skewness import unequal_weights

# All sign patterns are enumerated up to this many differences (2^20, about a million).
MOST_ENUMERATED = 20
RESAMPLES = 9_999
# Signs that are drawn at most: of more than 100,000 differences fewer patterns, 999 at least. The
# sum of so many is normal, and t says the same.
_MOST_SIGNS, _FEWEST_PATTERNS = 10**9, 999
SEED = 20_261_120
# Sums that are equal but for rounding count as equal, relative to the sum of |d|.
_ROUNDING = 1e-13
# One byte of random signs picks one of 256 sums of 8 differences.
_BITS = 8
_PATTERNS = (np.arange(1 << _BITS) >> np.arange(_BITS)[:, None] & 1).astype(np.float64)
_LOOKUPS_A_CHUNK = 1 << 15  # what fits the processor's cache is looked up four times as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip:
    """A one-sided sign-flip test.

    Attributes:
        p_value: P[T* >= T]: exact over all sign patterns, or by Monte Carlo.
        resamples: random sign patterns drawn; None where all were enumerated.
        seed: of these patterns; None where all were enumerated.
    """

    p_value: float
    resamples: int | None = None
    seed: int | None = None


def sign_flip(d: Array, *, resamples: int = RESAMPLES, seed: int = SEED) -> SignFlip:
    """One-sided sign-flip test of per-document differences, T = sum eps_i d_i.

    Exact (all 2^m sign patterns of the m differences that are not 0) for m <= 20; else
    p = (1 + #{T* >= T}) / (B + 1) over B seeded random patterns, which keeps the test's size
    (B. Phipson, G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010, article 39). Memory does not
    grow with B. The order of the differences changes nothing, except that of differences of the
    same size and other signs, by no more than the Monte Carlo error.

    For a ratio of sums, sum d / sum w, the same T is right: under the null the ratio is 0, its
    linearised residual e_i = d_i - 0 w_i is d_i itself, and no flip moves sum w.

    Args:
        d: finite differences, float64, shape (n,), positive where the candidate is worse. Sums
            over whole clusters, where documents within a cluster are not independent.
    """
    flippable = by_size(d[d != 0.0])
    # T* >= T exactly where the differences whose sign is flipped sum to 0 or less.
    limit = _ROUNDING * float(np.sum(np.abs(flippable)))
    if flippable.shape[0] <= MOST_ENUMERATED:
        sums = subset_sums(flippable)
        return SignFlip(p_value=int(np.count_nonzero(sums <= limit)) / sums.shape[0])
    fewer = _MOST_SIGNS // flippable.shape[0]
    resamples = min(resamples, max(fewer, _FEWEST_PATTERNS))
    extreme = _count_random(flippable, limit, resamples, np.random.default_rng(seed))
    return SignFlip(p_value=(1 + extreme) / (resamples + 1), resamples=resamples, seed=seed)


def by_size(values: Array) -> Array:
    """Sort by absolute value; those of one size stay in the order in which they came.

    Signs are what chance decides under the null, so they must lie in random places: sorted by
    sign, every data set would meet the same few seeded patterns in nearly the same way, and the
    test's size would be off by the luck of the seed.
    """
    return values[np.argsort(np.abs(values), kind="stable")]


def subset_sums(values: Array) -> Array:
    """Sums of all 2^m subsets of ``values``, shape (m,); the empty one is first, 0."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _count_random(values: Array, limit: float, draws: int, rng: np.random.Generator) -> int:
    """How many of ``draws`` random subsets (each value in or out, 1/2) sum to ``limit`` or less."""
    groups = -(-values.shape[0] // _BITS)
    padded = np.zeros(groups * _BITS)
    padded[: values.shape[0]] = values
    table = (padded.reshape(groups, _BITS) @ _PATTERNS).ravel()
    first = np.arange(groups) << _BITS
    rows = max(1, _LOOKUPS_A_CHUNK // groups)
    count = 0
    for start in range(0, draws, rows):
        chosen = rng.integers(0, 1 << _BITS, (min(rows, draws - start), groups), dtype=np.uint8)
        count += int(np.count_nonzero(table.take(first + chosen, mode="clip").sum(axis=1) <= limit))
    return count


# Differences from which on scipy takes the normal distribution, whatever they are.
_LARGE = 51


def wilcoxon_signed_rank(d: NDArray[np.float64]) -> float:
    """One-sided p-value that differences lie symmetrically about 0 (Wilcoxon 1945).

    Documents without any difference are left out, as Wilcoxon did (scipy's ``zero_method``
    "wilcox"); ties share their mean rank. Up to 50 differences without ties the distribution is
    exact, else normal with the variance corrected for ties (scipy's ``method`` "auto").

    It asks about the typical document, not about the mean: with skewed differences the two can
    differ, and then the mean is what the metric is made of. Without any difference p is 1.

    Args:
        d: finite differences, float64, shape (n,), positive where the candidate is worse.
    """
    different = d[d != 0.0]
    n = different.shape[0]
    if n == 0:
        return 1.0
    if n < _LARGE:
        from scipy import stats  # half a second that only few documents need cost

        return float(stats.wilcoxon(different, alternative="greater", method="auto").pvalue)
    _, places, ties = np.unique(np.abs(different), return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2.0
    above = float(np.sum(ranks[places.reshape(-1)][different > 0.0]))
    variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0
    variance -= float(np.sum(ties * (ties.astype(np.float64) ** 2 - 1.0))) / 48.0
    return float(special.ndtr((n * (n + 1.0) / 4.0 - above) / math.sqrt(variance)))


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


# From so many units on, all sign patterns are too many to try, and t is trusted.
ENOUGH_UNITS = 20
SIGNS = "-sign-flip"


def limited_to_signs(
    estimate: Estimate, values: Array, weights: Array | None, factor: float
) -> Estimate:
    """Join a t estimate with the sign-flip test where few units differ.

    Args:
        estimate: t estimate of the mean of ``values``, or of their ratio to ``weights``.
        values, weights: of the units, documents or clusters of them; float64, shape (n,). Units
            without weight and value say nothing, and are not counted.
        factor: from the unit of ``values`` to that of the estimate.

    Returns:
        The joined estimate, whose method ends in "-sign-flip"; the estimate as it is where 20
        units or more differ and weigh like as many of one size (but for p = 2^-m where nothing
        scatters), or none.
    """
    carried = np.ones_like(values) if weights is None else weights
    counted = (carried != 0.0) | (values != 0.0)
    values, carried = values[counted], carried[counted]
    differing = int(np.count_nonzero(values))
    if differing == 0:
        return estimate
    if differing >= ENOUGH_UNITS and _effective(carried) >= ENOUGH_UNITS:
        if scatters(estimate):
            return estimate
        least = 0.5**differing  # all differ alike: of their patterns of signs one has as much
        return _as_sure_as(estimate, least, least, differing=differing)
    joined = _as_sure_as(
        estimate, sign_flip(values).p_value, sign_flip(-values).p_value, differing=differing
    )
    method = estimate.method + SIGNS
    joined = replace(joined, method=method, interval_method=method)
    if values.shape[0] >= ENOUGH_UNITS:
        return joined
    low, high = typical_interval(values, carried, confidence=estimate.confidence)
    return replace(joined, low=min(joined.low, low * factor), high=max(joined.high, high * factor))


def limited_to_swaps(estimate: Estimate, *, differing: int, units: int) -> Estimate:
    """The floor alone, for a metric that is not a sum over documents.

    There an unchanged candidate's answer to a document could as well have been the base's, and the
    other way round. Of 2^m such swaps one is what was seen, so that 2^-m is a floor here too. The
    interval is open on both sides where no number of swaps of all ``units`` could deny a drift.
    """
    least = 0.5**differing
    if differing == 0 or (estimate.p_value >= least and least <= _level(estimate)):
        return estimate
    held = _as_sure_as(estimate, least, least, differing=differing)
    if 0.5**units <= _level(estimate):
        return held
    return replace(held, low=-math.inf, high=math.inf)


def _effective(weights: Array) -> int:
    """Units of one weight that would count as much; n equal ones count as n, not a bit less."""
    return math.floor(unequal_weights(weights).effective * (1.0 + 1e-12))


def _as_sure_as(estimate: Estimate, worse: float, better: float, *, differing: int) -> Estimate:
    """The estimate with p-values of at least these, and ends that they grant."""
    level = _level(estimate)
    p_value = max(estimate.p_value, worse)
    return replace(
        estimate,
        low=min(estimate.low, 0.0) if p_value > level else estimate.low,
        high=max(estimate.high, 0.0) if better > level else estimate.high,
        p_value=p_value,
        differing=differing,
    )


def _level(estimate: Estimate) -> float:
    return (1.0 - estimate.confidence) / 2.0
