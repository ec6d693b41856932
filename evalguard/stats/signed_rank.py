"""Wilcoxon's signed-rank test: a companion that no single document can carry."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

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
