"""A t interval that skewed or very unequal documents do not make too narrow.

The paired t interval decides, as port reports and every other tool make it. Where a few documents
(or clusters of them) are so lopsided, or weigh so much, that it is known to be too narrow, a
corrected one stands beside it as a companion: the t interval joined with those below, each end
where the wider one has it, and the largest p-value. So its interval and p-value agree, and it never
claims what the plain t test would not grant.

- Skewness: Hall's transformation of t. With lambda = G1 / (3 sqrt n),
  g(t) = t + lambda t^2 + lambda^2 t^3 / 3 + lambda / 2 is increasing, and follows Student's t more
  closely than t itself (P. Hall, J. R. Stat. Soc. B 54, 1992, 221-228). Used where Cochran's rule
  asks for more documents than there are (see tails.py).
- Unequal weights: the bias-reduced (CR2) standard error sqrt(sum_g e_g^2 / (1 - h_g)) / sum w, with
  h_g = w_g / sum w, and Satterthwaite's degrees of freedom under independent documents (R. M. Bell,
  D. F. McCaffrey, Survey Methodology 28, 2002, 169-181). Used where few long texts or large
  clusters weigh most. Equal weights give the usual standard error and n - 1 again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from evalguard.stats.estimate import Estimate, scatters, t_estimate
from evalguard.stats.moments import Array, exact_sum, moments
from evalguard.stats.probability import t_critical, t_upper_tail
from evalguard.stats.tails import skewness, unequal_weights

SKEW = "-skew"
CR2 = "-cr2"


def corrected_t(
    estimate: Estimate, values: Array, weights: Array | None, factor: float
) -> Estimate | None:
    """Join a t estimate with the corrected ones that its documents ask for.

    Args:
        estimate: plain t estimate of the mean of ``values``, or of their ratio to ``weights``,
            with n - 1 degrees of freedom.
        values, weights: of the documents, or sums over clusters of them; float64, shape (n,).
        factor: from the unit of ``values`` to that of the estimate.

    Returns:
        The joined estimate, whose method ends in "-skew" or "-cr2" or both; None where the
        documents ask for no correction.
    """
    n = values.shape[0]
    if not scatters(estimate):
        return None
    joined = estimate
    skew = skewness(values, weights)
    if skew.needed > n:
        joined = _join(joined, _hall(estimate, skew.value, n), SKEW)
    if weights is not None and _lopsided(weights):
        joined = _join(joined, _cr2(estimate, values, weights, factor), CR2)
    return None if joined is estimate else joined


def _lopsided(weights: Array) -> bool:
    """Whether weights differ, and too much for so few; no CR2 where one alone weighs anything."""
    alike = bool((weights == weights[0]).all())
    alone = bool((weights / exact_sum(weights) == 1.0).any())
    return not (alike or alone) and unequal_weights(weights).needed > weights.shape[0]


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


def _hall(estimate: Estimate, skew: float, n: int) -> Estimate:
    """Student's t of Hall's g(t): interval by the inverse of g, p-value by g."""
    bend = skew / (3.0 * math.sqrt(n))
    t = estimate.point / estimate.stderr
    critical = t_critical(estimate.confidence, n - 1)
    stretched = 1.0 + bend * t  # g(t) = (stretched^3 - 1) / (3 lambda) + lambda / 2
    bent = (stretched * stretched * stretched - 1.0) / (3.0 * bend) + bend / 2.0
    return replace(
        estimate,
        low=estimate.point - estimate.stderr * _unbent(critical, bend),
        high=estimate.point - estimate.stderr * _unbent(-critical, bend),
        p_value=t_upper_tail(bent, n - 1),
    )


def _unbent(x: float, bend: float) -> float:
    """The t with g(t) = x."""
    cube = 1.0 + 3.0 * bend * (x - bend / 2.0)
    return (math.copysign(abs(cube) ** (1.0 / 3.0), cube) - 1.0) / bend


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
