"""Stakes on flips: how much to bet that a 0/1 metric loses less than is claimed."""

from __future__ import annotations

import numpy as np

from evalguard.stats.sequential.betting import Array, before


def kelly_stakes(d: Array, claimed: Array, *, seen: float) -> Array:
    """Stakes that make log-wealth grow fastest if documents go on as those before did.

    With p1, p0, p-1 the chances of a loss (d = 1), no flip and a gain (d = -1), estimated from the
    documents before, and mu the claimed mean, the stake x maximises E log(1 - x (d - mu)):

        -p1 (1 - mu) / (1 - x (1 - mu)) + p0 mu / (1 + x mu) + p-1 (1 + mu) / (1 + x (1 + mu)) = 0,

    a quadratic (J. L. Kelly, Bell System Technical Journal 35, 1956, 917-926). It is 0 where what
    was seen is no less than what is claimed.

    Args:
        d: 1, 0 or -1 per document, in the order drawn, shape (n,).
        claimed: mu_i of the claim that one bets against, from what came before document i.
        seen: flips of each kind that count as seen before any is. Few, and a lossless candidate is
            believed soon; more than none, so that one flip does not cost everything.
    """
    spread = np.arange(d.shape[0], dtype=np.float64) + 2.0 * seen + 1.0
    lost = (before((d > 0.0).astype(np.float64)) + seen) / spread
    won = (before((d < 0.0).astype(np.float64)) + seen) / spread
    mu = np.clip(claimed, -0.999, 0.999)
    a = -mu * (1.0 - mu * mu)
    b = (
        -lost * (1.0 - mu) * (1.0 + 2.0 * mu)
        + 2.0 * (1.0 - lost - won) * mu * mu
        - won * (1.0 + mu) * (1.0 - 2.0 * mu)
    )
    gain = mu - (lost - won)
    root = np.sqrt(np.maximum(0.0, b * b - 4.0 * a * gain))
    # The root next to 0, in the form that stays exact where the quadratic's first term vanishes.
    stake = 2.0 * gain / np.maximum(root - b, 1e-300)
    return np.where(gain > 0.0, np.clip(stake, 0.0, 1.0), 0.0)
