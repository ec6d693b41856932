"""Effort: how sure a search must be, and how much it may spend before it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2

from evalguard.bisect.jitter import deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Probabilities at which a search acts, and its limit.

    Attributes:
        verify: an answer that probable is measured on all documents.
        accept: likewise, after that, to be given.
        certain: to be given although the culprits do not account for all drift.
        nothing: that there is no culprit; ``chance``: likewise, of a drift above the margin, which
            then is jitter.
        patience: full evaluations, after which a drift that points at nobody is given up, where an
            assignment's jitter is no smaller than half the margin, and an eighth of the drift.
        pointing: probability that the likeliest culprit must have then; it rises with what is
            spent, to 1 at twice the patience. ``leave`` is taken off where all settings together
            are suspected of no more than ``few`` culprits: it may be open only which one it is,
            where spread drift points at several.
        spread: that the drift is spread over all settings, to be called so where it is given up.
        diffuse: that the drift is spread over all settings.
        z: standard errors that a culprit's effect must be away from 0.
        clear: that many, and it need not be measured alone on all documents.
        least: full evaluations, before which no drift is called spread over all settings.
        most: full evaluations, after which the search gives up.
        worth: nats that a full evaluation must promise where probably there is no culprit.
        draws: from the posterior, to choose a measurement.
    """

    verify: float = 0.65
    accept: float = 0.8
    certain: float = 0.97
    nothing: float = 0.993
    chance: float = 0.96
    patience: float = 5.0
    pointing: float = 0.5
    leave: float = 0.35
    few: float = 1.2
    spread: float = 0.5
    diffuse: float = 0.95
    z: float
    clear: float
    least: float
    most: float
    worth: float = 0.15
    draws: int = 96


_LONGEST_LEAST = 5.0  # full evaluations: more settings do not make spread drift harder to see


def effort_for(n: int, *, documents: int, thorough: bool) -> Effort:
    """The usual effort for n settings; a thorough one spends four times as much if it must."""
    z, clear = (deviations(z, documents) for z in (3.0, 4.5))
    bits = log2(max(n, 2))
    least, most = min(0.5 + bits, _LONGEST_LEAST), 8.0 + 3.0 * bits
    if not thorough:
        return Effort(z=z, clear=clear, least=least, most=most)
    return Effort(
        z=z,
        clear=inf,
        worth=0.02,
        verify=0.9,
        accept=0.95,
        certain=0.99,
        nothing=0.99,
        chance=0.99,
        patience=inf,
        diffuse=0.98,
        least=2 * least,
        most=4 * most,
    )
