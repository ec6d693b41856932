"""0/1 metrics: equal answers, McNemar's tests on the flips, and Tango's score interval.

b counts documents that got worse (base right, candidate wrong), c those that got better, of n;
m = b + c. Only the flips carry information about the drift (b - c) / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evalguard.core.pairing import PairedScores
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.effective_sample import Share
from evalguard.stats.estimate import Estimate, fair_coin_upper_tail, find_root, normal_critical


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAnswers:
    """The documents that both models answered in the same words, or with the same option.

    Attributes:
        share: of all documents, and its ``interval`` (exact binomial, of the effective number of
            clusters where documents share something).
        churn: documents that both got wrong, in different ways; None for a metric that is not 0/1.
    """

    share: float
    interval: tuple[float, float]
    churn: int | None


def same_answers(paired: PairedScores, *, binary: bool, confidence: float) -> SameAnswers | None:
    """Compare the answers; None where either run does not show them.

    Args:
        binary: whether the metric is 0/1, right or wrong.
    """
    ours, theirs = paired.base.answers, paired.candidate.answers
    if not ours or not theirs:
        return None
    same = np.array(
        [
            base_answer == other_answer
            for base_answer, other_answer in zip(ours, theirs, strict=True)
        ]
    )
    labels = paired.clusters or tuple(map(str, paired.base.doc_ids.tolist()))
    sums = cluster_sums(same.astype(np.float64), None, labels)
    share = Share(hits=sums.values, positions=sums.weights)
    worst = 0.0 if paired.base.higher_is_better else 1.0
    wrong = (paired.base.values == worst) & (paired.candidate.values == worst)
    return SameAnswers(
        share=share.value,
        interval=share.interval(confidence=confidence),
        churn=int(np.sum(wrong & ~same)) if binary else None,
    )


Alternative = Literal["greater", "two-sided"]


def mcnemar_exact(b: int, c: int, *, alternative: Alternative = "greater") -> float:
    """Exact McNemar p-value: P[Bin(b + c, 1/2) >= b] (McNemar 1947; exact conditional form).

    "two-sided" doubles the smaller tail, at most 1. Without any flip it is 1.
    """
    m = b + c
    if alternative == "two-sided":
        return min(1.0, 2.0 * fair_coin_upper_tail(max(b, c), m))
    return fair_coin_upper_tail(b, m)


def mcnemar_mid_p(b: int, c: int) -> float:
    """One-sided mid-p: P[Bin(m, 1/2) > b] + P[Bin(m, 1/2) = b] / 2, the mean of both tails.

    Less conservative than the exact test: its size comes nearer to the level, and was never seen
    above it in 9,595 scenarios (M. W. Fagerland, S. Lydersen, P. Laake, BMC Med. Res. Methodol.
    13:91, 2013). It decides; the exact p-value stands beside it.
    """
    m = b + c
    return 0.5 * (fair_coin_upper_tail(b, m) + fair_coin_upper_tail(b + 1, m))


def flip_stderr(b: int, c: int, n: int) -> float:
    """Paired standard error of (b - c) / n: sqrt(m - (b - c)^2 / n) / n."""
    return math.sqrt(max(0.0, (b + c) - (b - c) ** 2 / n)) / n


def tango_interval(b: int, c: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Tango's score interval of the paired difference delta = p_worse - p_better.

    The deltas that the score test does not reject: with q(delta) the maximum-likelihood estimate
    of p_better when the difference is delta,
    |b - c - n delta| <= z sqrt(n (2 q(delta) + delta (1 - delta))), within [-1, 1]
    (T. Tango, Statistics in Medicine 17, 1998, 891-908). Swapping b and c mirrors it exactly.

    Raises:
        ValueError: for negative counts or more flips than documents.
    """
    if b < 0 or c < 0 or b + c > n or n < 1:
        raise ValueError(f"flips must be counts of documents: b={b}, c={c}, n={n}")
    z = normal_critical(confidence)
    return _tango_low(b, c, n, z), -_tango_low(c, b, n, z)


def _tango_low(b: int, c: int, n: int, z: float) -> float:
    """The lower end: the smallest delta with score <= z."""
    if c == n:
        return -1.0
    if b + c == 0:  # the score's numerator and variance both vanish at delta = 0
        return -z * z / (n + z * z)
    if b == n:  # the same at delta = 1
        return (n - z * z) / (n + z * z)

    def excess(delta: float) -> float:
        variance = 2.0 * _better_given(delta, b, c, n) + delta * (1.0 - delta)
        return b - c - n * delta - z * math.sqrt(max(0.0, n * variance))

    return find_root(excess, -1.0, (b - c) / n)


def _better_given(delta: float, b: int, c: int, n: int) -> float:
    """Maximum-likelihood estimate of p_better under p_worse - p_better = delta."""
    linear = (2.0 * n - b + c) * delta - b - c
    constant = -c * delta * (1.0 - delta)
    root = math.sqrt(max(0.0, linear * linear - 8.0 * n * constant))
    return (root - linear) / (4.0 * n)


def flip_estimate(b: int, c: int, n: int, *, confidence: float) -> Estimate:
    """Drift (b - c) / n of a 0/1 metric.

    The p-value is McNemar's mid-p; the interval is Tango's, with an end pulled back to 0 where the
    mid-p at the same one-sided level, (1 - confidence) / 2, denies that the drift is real: the
    mid-p decides, so the interval never claims what it does not grant. The other way round they
    never disagree at confidences from 0.9 to 0.99.
    """
    low, high = tango_interval(b, c, n, confidence=confidence)
    alpha = (1.0 - confidence) / 2.0
    p_value = mcnemar_mid_p(b, c) if b + c else 1.0
    if p_value > alpha:
        low = min(low, 0.0)
    if mcnemar_mid_p(c, b) > alpha:
        high = max(high, 0.0)
    return Estimate(
        point=(b - c) / n,
        stderr=flip_stderr(b, c, n),
        low=low,
        high=high,
        p_value=p_value,
        method="mcnemar-mid-p",
        interval_method="tango-score",
        confidence=confidence,
        differing=b + c,
    )
