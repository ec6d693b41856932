"""A t estimate that skewed, or very unequal, documents do not make too sure.

Where most documents lose a little and a few gain much, a sample without enough of those few looks
worse than it is, and scatters less: Student's t calls an unchanged candidate really worse far too
often. Where such a tail is seen, and where a few texts or clusters weigh nearly all, the estimate
that decides is the more careful of t and of those below: each end of the interval where the wider
one has it, and the larger p-value, so that interval and p-value agree.

- A long tail: Hall's transformation of t. With lambda = G1 / (3 sqrt n), g(t) = t + lambda t^2 +
  lambda^2 t^3 / 3 + lambda / 2 is increasing, and follows Student's t more closely than t itself
  (P. Hall, J. R. Stat. Soc. B 54, 1992, 221-228).
- A very long one: a sample of such documents has too few of the tail more often than too many, and
  its skewness is too small then. So the end that points along the tail, and the p-value of a tail
  of gains, are those of the sample with *one or two more documents* like its most extreme one.
- Unequal weights: the bias-reduced (CR2) standard error sqrt(sum_g e_g^2 / (1 - h_g)) / sum w, with
  h_g = w_g / sum w, and Satterthwaite's degrees of freedom under independent documents (R. M. Bell,
  D. F. McCaffrey, Survey Methodology 28, 2002, 169-181). Used where few long texts or large
  clusters weigh most. Equal weights give the usual standard error and n - 1 again.

How often that keeps its word, and what it costs: ``benchmarks/skewed_gate.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from evalguard.stats.estimate import Estimate, scatters, t_estimate
from evalguard.stats.moments import Array, exact_sum, moments
from evalguard.stats.probability import t_critical, t_upper_tail
from evalguard.stats.skewness import skewness, unequal_weights

SKEW = "-skew"
CR2 = "-cr2"

# Of Cochran's number of documents, which is for two-sided intervals. A one-sided test needs more:
# below 8 times it Hall's transformation is used, below 2 times it with one document more, below it
# with two. (With one at most, 6.5% of unchanged candidates with lognormal gains of spread 2 and 200
# documents were called worse in place of 4.3%; with one from 8 times on, intervals of mildly skewed
# documents held the truth in 97.4%.)
_ONE_SIDED = 8.0
_ONE_MORE = 2.0
# A sample skewness alone is no tail: of t with 3 degrees of freedom one document makes it. In a
# skewed population most documents lie on the other side of the drift, and the tail is longer than
# the other one; so much longer that it is a tail whatever the others do.
_MORE_BEYOND = 0.15  # of the documents that differ, and
_ERRORS_BEYOND = 1.5  # standard errors of that share, 0.6 / sqrt n for normal ones
_TWICE, _FOUR_TIMES = 2.0, 4.0


def careful_t(
    estimate: Estimate,
    values: Array,
    weights: Array | None,
    factor: float,
    *,
    df: float | None = None,
) -> Estimate:
    """The more careful of a t estimate and of the corrected ones that its documents ask for.

    Args:
        estimate: of the mean of ``values``, or of their ratio to ``weights``.
        values, weights: of the documents, or sums over clusters of them; float64, shape (n,).
        factor: from the unit of ``values`` to that of the estimate.
        df: degrees of freedom of the estimate's standard error; None for n - 1.

    Returns:
        The joined estimate, whose method ends in "-skew" or "-cr2" or both; the estimate as it is
        where the documents ask for no correction.
    """
    if not scatters(estimate):
        return estimate
    joined = _corrected_for_tail(estimate, values, weights, factor, df)
    if weights is not None and df is None and _lopsided(weights):
        joined = _join(joined, _cr2(estimate, values, weights, factor), CR2)
    return joined


def corrected_t(
    estimate: Estimate, values: Array, weights: Array | None, factor: float
) -> Estimate:
    """The estimate of quantities that are skewed by nature, such as divergences.

    Hall's interval wherever Cochran's rule asks for more documents than there are, whatever their
    tails, and CR2. Arguments as of ``careful_t``.
    """
    n = values.shape[0]
    if not scatters(estimate):
        return estimate
    joined, skew = estimate, skewness(values, weights)
    if skew.needed > n:
        joined = _join(joined, _hall(estimate, skew.value / math.sqrt(n), n - 1), SKEW)
    if weights is not None and _lopsided(weights):
        joined = _join(joined, _cr2(estimate, values, weights, factor), CR2)
    return joined


def uncorrected(method: str) -> str:
    """The method without its corrections."""
    return method.removesuffix(CR2).removesuffix(SKEW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """A long tail of gains, or of losses.

    Attributes:
        skew: G1 of the residuals, over sqrt n; below 0 the tail is one of gains.
        furthest: the position of its most extreme unit.
        more: units like it that so few should have had more, 0 to 2.
    """

    skew: float
    furthest: int
    more: int


def find_tail(values: Array, weights: Array | None) -> Tail | None:
    """The long tail of units, documents or clusters; None where they have none that matters."""
    n = values.shape[0]
    skew = skewness(values, weights)
    if _ONE_SIDED * skew.needed <= n:
        return None
    residuals = values - moments(values, weights).point * (1.0 if weights is None else weights)
    along = residuals if skew.value > 0.0 else -residuals
    longest, other = float(np.max(along)), -float(np.min(along))
    differing = along[values != 0.0]
    beyond = int(np.count_nonzero(differing < 0.0)) - int(np.count_nonzero(differing > 0.0))
    least = max(
        _MORE_BEYOND * differing.shape[0], _ERRORS_BEYOND * 0.6 * math.sqrt(differing.shape[0])
    )
    most_lie_beyond = longest > _TWICE * other and beyond > least
    if not (most_lie_beyond or longest > _FOUR_TIMES * other):
        return None
    furthest = np.flatnonzero(along == longest)
    lightest = 0 if weights is None else int(np.argmin(weights[furthest]))
    return Tail(
        skew=skew.value / math.sqrt(n),
        furthest=int(furthest[lightest]),
        more=int(_ONE_MORE * skew.needed > n) + int(skew.needed > n),
    )


def _corrected_for_tail(
    estimate: Estimate, values: Array, weights: Array | None, factor: float, df: float | None
) -> Estimate:
    tail = find_tail(values, weights)
    if tail is None:
        return estimate
    freedom = values.shape[0] - 1.0 if df is None else df
    joined = _join(estimate, _hall(estimate, tail.skew, freedom), SKEW)
    if tail.more == 0:
        return joined
    more, skew = _with_more(estimate, values, weights, factor, tail)
    freedom += tail.more
    beyond = _hall(more, skew, freedom), _student(more, freedom)
    if tail.skew > 0.0:  # one more loss says nothing new of the end that gains would move
        return replace(joined, high=max(joined.high, *(one.high for one in beyond)))
    return replace(
        joined,
        low=min(joined.low, *(one.low for one in beyond)),
        p_value=max(joined.p_value, *(one.p_value for one in beyond)),
    )


def _with_more(
    estimate: Estimate, values: Array, weights: Array | None, factor: float, tail: Tail
) -> tuple[Estimate, float]:
    """Point and standard error of the sample with ``tail.more`` more units, and its skewness.

    By the formulas of ``ratio_moments``, from the residuals e of the sample as it is: k units like
    number i move the drift by k e_i / (sum w + k w_i). The skewness is G1 over sqrt n.
    """
    n, k, i = values.shape[0], tail.more, tail.furthest
    carried = np.ones_like(values) if weights is None else weights
    residuals = values - moments(values, weights).point * carried
    scale = float(np.max(np.abs(residuals)))
    total, own = exact_sum(carried), float(carried[i])
    moved = k * float(residuals[i]) / (total + k * own)
    joined = np.append(residuals, np.full(k, residuals[i]))
    before = residuals / scale
    after = (joined - moved * np.append(carried, np.full(k, own))) / scale
    squares = exact_sum(after * after)
    spread = math.sqrt(squares / exact_sum(before * before))
    counts = math.sqrt((n + k) / (n + k - 1) * (n - 1) / n)
    more = replace(
        estimate,
        point=estimate.point + moved * factor,
        stderr=estimate.stderr * spread * counts * total / (total + k * own),
    )
    return more, exact_sum(after**3) / squares**1.5


def _student(estimate: Estimate, df: float) -> Estimate:
    return t_estimate(
        estimate.point,
        estimate.stderr,
        df=df,
        confidence=estimate.confidence,
        method=estimate.method,
    )


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
