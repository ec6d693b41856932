"""Jitter: how far the mean drift of an assignment may be off, as an estimate for all documents.

Numerical differences of an assignment average out over documents. On part of the documents there
is, beside them, the draw of the documents: the same setting hurts some more than others.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr
from scipy.stats import chi2, t

from evalguard.bisect.oracle import Floats

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
        self._between: Floats = np.empty((0, 0))

    def error_variances(self, drifts: list[Floats]) -> Floats:
        """Variance of each mean drift about the mean over all n documents; (m,).

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
        least = np.min(self._between, axis=1)
        jitter = np.where(own > _CONCENTRATED * smallest, np.minimum(own, least), own)
        share = self._sizes / self._n
        whole = np.maximum(own, self._lumpiness)
        variance: Floats = (share * jitter + (1.0 - share) * whole) / self._sizes
        return variance

    def _update(self, drifts: list[Floats]) -> None:
        """Compute what is new: of an assignment, and of its difference to every other."""
        new, m = len(drifts) - self._sizes.size, len(drifts)
        sizes = np.array([drift.size for drift in drifts], dtype=np.float64)
        known = np.concatenate([self._sizes, np.zeros(new)])
        self._spread = np.concatenate([self._spread, np.zeros(new)])
        between = np.full((m, m), np.inf)
        between[: m - new, : m - new] = self._between
        for one in np.flatnonzero(sizes != known):
            self._spread[one] = np.var(drifts[one], ddof=1)
            for other, drift in enumerate(drifts):
                common = min(drift.size, drifts[one].size)
                if other != one and common >= _ENOUGH:
                    difference = drifts[one][:common] - drift[:common]
                    between[one, other] = between[other, one] = np.var(difference, ddof=1)
        self._sizes, self._between = sizes, between

    def _own(self, sizes: Floats, spread: Floats) -> Floats:
        """Each variance over documents, steadied by the others'; (m,).

        The smallest of many estimates from few documents is too small: it counts as what it is the
        median of.
        """
        full = spread[sizes >= min(self._n, _ENOUGH)]
        degrees = min(self._n, _ENOUGH) - 1
        least = chi2.ppf(1.0 - 0.5 ** (1.0 / full.size), degrees) / degrees
        pooled = float(np.sum(sizes * spread) / np.sum(sizes))
        steady = min(pooled, float(np.min(full)) / min(float(least), 1.0))
        own = (sizes * spread + _OWN_WEIGHT * steady) / (sizes + _OWN_WEIGHT)
        return np.where(spread > 0.0, own, 0.0)


def deviations(z: float, n: int) -> float:
    """Standard errors, estimated on n documents, that are as rare as ``z`` exact ones."""
    return float(t.isf(ndtr(-z), n - 1))
