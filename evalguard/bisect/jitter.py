"""Jitter: how far the mean drift of an assignment may be off, as an estimate for all documents.

Numerical differences of an assignment average out over documents. On part of the documents there
is, beside them, the draw of the documents: the same setting hurts some more than others.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaincinv, ndtr, stdtrit

from evalguard.bisect.oracle import Floats
from evalguard.bisect.twin_assignments import ALIKE

FEWEST = 8  # documents that show how far they scatter
_CONCENTRATED = 1.5  # times the smallest variance: drift sits on few documents
_ENOUGH = 64  # documents to compare two assignments on
_OWN_WEIGHT = 30.0  # documents that the variance of all assignments together counts for


class Jitter:
    """Error variances of the assignments of a search, each one's statistics computed once.

    ``n``: documents in all; ``lumpiness``: as of ``Blocks``.
    """

    def __init__(self, n: int, lumpiness: float) -> None:
        self._n, self._lumpiness = n, lumpiness
        self._sizes: Floats = np.empty(0)
        self._spread: Floats = np.empty(0)
        self._between: dict[tuple[int, int], tuple[int, float]] = {}

    def error_variances(self, drifts: list[Floats]) -> tuple[Floats, Floats]:
        """Variance of each mean drift about the mean over all n documents, and what of it would be
        left on all of them; (m,), (m,).

        ``drifts``: for each assignment its per-document drift over a prefix of one common order;
        from call to call more may come, and prefixes grow.

        With f the share measured and v the variance over documents, v/(fn) would do for a sample of
        something inexhaustible. Here only jitter is: the variance of the mean is
        (f j + (1 - f) max(v, lumpiness)) / (fn), where j, the jitter, is v itself or, if drift sits
        on few documents, the variance of the difference to the assignment that shares them best.
        """
        self._update(drifts)
        own = self._own(self._sizes, self._spread)
        smallest = float(np.min(own[own > 0.0], initial=np.inf))
        jitter = own.copy()
        for one in np.flatnonzero(own > _CONCENTRATED * smallest).tolist():
            jitter[one] = min(own[one], self._least_between(one, drifts, smallest))
        share = self._sizes / self._n
        whole = np.maximum(own, self._lumpiness)
        variance: Floats = (share * jitter + (1.0 - share) * whole) / self._sizes
        return variance, jitter / self._n

    def _update(self, drifts: list[Floats]) -> None:
        """Compute the variances over documents that are new."""
        sizes = np.array([drift.size for drift in drifts], dtype=np.float64)
        new = sizes.size - self._sizes.size
        known = np.concatenate([self._sizes, np.zeros(new)])
        self._spread = np.concatenate([self._spread, np.zeros(new)])
        for one in np.flatnonzero(sizes != known):
            self._spread[one] = _variance(drifts[one])
        self._sizes = sizes

    def _least_between(self, one: int, drifts: list[Floats], smallest: float) -> float:
        """Variance of the difference to the assignment that shares the drift best.

        A twin shares the jitter too: then it is taken for no larger than the smallest variance.
        """
        least = np.inf
        for other, drift in enumerate(drifts):
            common = min(drift.size, drifts[one].size)
            if other == one or common < _ENOUGH:
                continue
            pair = (one, other) if one < other else (other, one)
            if self._between.get(pair, (0, 0.0))[0] != common:
                difference = drifts[one][:common] - drift[:common]
                self._between[pair] = (common, _variance(difference))
            twins = self._between[pair][1] <= ALIKE * self._spread[one]
            least = min(least, smallest if twins else self._between[pair][1])
        return least

    def _own(self, sizes: Floats, spread: Floats) -> Floats:
        """Each variance over documents, steadied by the others'; (m,).

        The smallest of many estimates from few documents is too small: it counts as what it is the
        median of.
        """
        full = spread[sizes >= min(self._n, _ENOUGH)]
        degrees = min(self._n, _ENOUGH) - 1
        # a quantile of chi-squared; importing scipy.stats takes half a second
        least = 2.0 * gammaincinv(degrees / 2.0, 1.0 - 0.5 ** (1.0 / full.size)) / degrees
        pooled = float(np.sum(sizes * spread) / np.sum(sizes))
        steady = min(pooled, float(np.min(full)) / min(float(least), 1.0))
        own = (sizes * spread + _OWN_WEIGHT * steady) / (sizes + _OWN_WEIGHT)
        return np.where(spread > 0.0, own, 0.0)


def _variance(values: Floats) -> float:
    """As numpy's with ddof=1, in a third of the time: it is asked thousands of times."""
    off = values - np.add.reduce(values) / values.size
    return float(np.add.reduce(off * off)) / max(values.size - 1, 1)


def deviations(z: float, n: int) -> float:
    """Standard errors, estimated on n documents, that are as rare as ``z`` exact ones."""
    return float(-stdtrit(n - 1, ndtr(-z)))  # a quantile of Student's t
