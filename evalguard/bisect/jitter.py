"""Jitter: how far the mean drift of an assignment may be off, as an estimate for all documents.

Numerical differences of an assignment average out over documents. On part of the documents there
is, beside them, the draw of the documents: the same setting hurts some more than others.
"""

from __future__ import annotations

import numpy as np

from evalguard.bisect.oracle import Floats

_CONCENTRATED = 1.5  # times the smallest variance: drift sits on few documents
_ENOUGH = 64  # documents to compare two assignments on
_OWN_WEIGHT = 30.0  # documents that the variance of all assignments together counts for


def error_variances(drifts: list[Floats], n: int, lumpiness: float) -> Floats:
    """Variance of each mean drift about the mean over all n documents; (m,).

    ``drifts``: for each assignment its per-document drift over a prefix of one common order.
    ``lumpiness``: variance of the candidate's drift within strata of the blocks.

    With f the share measured and v the variance over documents, v/(fn) would do for a sample of
    something inexhaustible. Here only jitter is: the variance of the mean is
    (f j + (1 - f) max(v, lumpiness)) / (fn), where j, the jitter, is v itself or, if drift sits on
    few documents, the variance of the difference to the assignment that shares them best.
    """
    sizes = np.array([drift.size for drift in drifts], dtype=np.float64)
    spread = np.array([np.var(drift) for drift in drifts])
    pooled = float(np.sum(sizes * spread) / np.sum(sizes))
    own = (
        sizes * spread + _OWN_WEIGHT * min(pooled, float(np.min(spread[sizes >= min(n, _ENOUGH)])))
    ) / (sizes + _OWN_WEIGHT)
    own = np.where(spread > 0.0, own, 0.0)
    smallest = float(np.min(own[own > 0.0], initial=np.inf))
    jitter = own.copy()
    for one in np.flatnonzero(own > _CONCENTRATED * smallest):
        for other, drift in enumerate(drifts):
            common = min(drift.size, drifts[one].size)
            if other != one and common >= _ENOUGH:
                between = float(np.var(drifts[one][:common] - drift[:common]))
                jitter[one] = min(jitter[one], between)
    share = sizes / n
    variance: Floats = (share * jitter + (1.0 - share) * np.maximum(own, lumpiness)) / sizes
    return variance
