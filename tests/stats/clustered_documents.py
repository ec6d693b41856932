"""Documents that move together, by cluster."""

from __future__ import annotations

import numpy as np
from paired_tables import WEIGHTED, paired

from evalguard.core.pairing import PairedScores

RNG = np.random.default_rng(21)
G = 40
MEMBERS = np.repeat(np.arange(G), RNG.integers(1, 9, G))
N = len(MEMBERS)
LABELS = tuple(f"passage {g}" for g in MEMBERS)
BASE = -RNG.gamma(1.4, 1.0, N)
D = RNG.normal(0.0, 0.3, G)[MEMBERS] + RNG.normal(0.05, 0.2, N)
WEIGHTS = RNG.integers(4, 60, N).astype(float)


def clustered(d=D, aggregation="mean", base=BASE, labels=LABELS, weights=None) -> PairedScores:
    if aggregation in WEIGHTED and weights is None:
        weights = WEIGHTS[: len(d)]
    base = base[: len(d)]
    return paired(
        base, base - d, aggregation, weights=weights, clusters=labels, cluster_field="passage"
    )
