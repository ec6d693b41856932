"""Totals of a finite set of documents, from a random sample of it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.moments import mean_moments
from evalguard.stats.probability import t_critical


def expected_total(
    values: NDArray[np.float64], total: int, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Sum over all documents (tokens, say) from a simple random sample without replacement.

    N mean -+ t_{n-1} N sd / sqrt(n) sqrt(1 - n / N) (W. G. Cochran, Sampling Techniques, 1977,
    sections 2.6-2.9). The sample's own sum is a floor, and with n = N it is the answer.

    Args:
        values: one per sampled document, not negative, shape (n,), n >= 1.
        total: N, at least n.

    Returns:
        (expected, low, high); the interval is (sample's sum, infinity) for one of many documents.
    """
    n, seen = values.shape[0], math.fsum(values.tolist())
    if n >= total:
        return seen, seen, seen
    if n < 2:
        return seen * total, seen, math.inf
    moments = mean_moments(values)
    half = t_critical(confidence, n - 1) * moments.stderr * math.sqrt(1.0 - n / total)
    expected = total * moments.point
    return expected, max(seen, expected - total * half), expected + total * half
