"""Documents of which few carry a drift."""

from __future__ import annotations

import numpy as np
from paired_tables import paired

from evalguard.stats.drift import estimate_drift

RNG = np.random.default_rng(41)
N = 60
SKEWED = RNG.lognormal(-1.0, 1.2, N) - 0.3
GAINS = -SKEWED + 2.0 * np.mean(SKEWED)


def drift(d, weights=None, *, confidence=0.95, clusters=()):
    kind = "mean" if weights is None else "weighted_perplexity"
    fields = {"clusters": clusters, "cluster_field": "passage"} if clusters else {}
    run = paired(np.zeros(len(d)), -np.asarray(d), kind, weights=weights, **fields)
    return estimate_drift(run, confidence=confidence)


def corrected(d, weights=None, **how):
    found = drift(d, weights, **how)
    assert found.plain is not None
    return found.estimate
