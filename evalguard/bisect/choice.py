"""Choice: which measurement tells most about who is guilty, for what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.buildable import LIKELY_FAILS, Buildable
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.oracle import Floats, Mask
from evalguard.bisect.probe import LAUNCH
from evalguard.bisect.structure import Draw

_RANDOM = 96  # random assignments proposed
_FINALISTS = 12
_GLANCE = 1 / 8  # share of the documents at which finalists are chosen
_DENSITIES = (0.25, 0.5, 0.5, 0.75)  # of random assignments
_SAVED = 0.9  # of the cost, if it is needed anyway
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Measure ``mask`` up to ``share`` of the documents; ``rate``: nats per full evaluation."""

    mask: Mask
    share: float
    rate: float


def next_measurement(
    measured: Measurements,
    draws: list[Draw],
    buildable: Buildable,
    rng: np.random.Generator,
) -> Choice | None:
    """The measurement with the most information per cost; None if nothing can be learnt.

    ``draws``: equally likely answers, to be told apart. Of what would be needed to prove one of
    them anyway, only the rest of the cost counts.
    """
    proofs = Counter(mask.tobytes() for draw in draws for mask in _proofs(draw, measured))
    masks = _proposed(measured, draws, rng)
    risks = buildable.risks(masks)
    masks, risks = masks[risks < LIKELY_FAILS], risks[risks < LIKELY_FAILS]
    if not len(masks):
        return None
    predictions = np.array([draw.predict(masks) for draw in draws])
    noise = measured.noise()
    promise = _information(predictions[::2], noise / _GLANCE) * (1.0 - risks)
    order = np.argsort(-promise, kind="stable")
    best: Choice | None = None
    for at in order[:_FINALISTS]:
        mask, risk = masks[at], float(risks[at])
        done = measured.measured(mask)
        known = float(_information(predictions[:, [at]], noise / done)[0]) if done else 0.0
        wanted = _SAVED * proofs[mask.tobytes()] / len(draws)
        for share in _SHARES:
            if measured.cost(mask, share) <= 0.0:  # no block ends between here and there
                continue
            told = float(_information(predictions[:, [at]], noise / share)[0]) - known
            cost = (1.0 - wanted) * measured.cost(mask, share)
            rate = (1.0 - risk) * told / ((1.0 - risk) * cost + risk * LAUNCH)
            if best is None or rate > best.rate:
                best = Choice(mask=mask, share=share, rate=rate)
    return best


def _proofs(draw: Draw, measured: Measurements) -> list[Mask]:
    """What would be needed, about, to prove an answer: each member alone, and all others."""
    n = len(measured.settings)
    return [*np.eye(n, dtype=np.bool_)[list(draw.structure.members)], ~draw.structure.mask(n)]


def _proposed(measured: Measurements, draws: list[Draw], rng: np.random.Generator) -> Mask:
    """Assignments worth a thought: what the answers say, random subsets, unfinished ones."""
    n = len(measured.settings)
    members = np.array([draw.structure.mask(n) for draw in draws])
    alone = np.eye(n, dtype=np.bool_)[members.any(axis=0)]
    random = rng.random((_RANDOM, n)) < rng.choice(_DENSITIES, size=(_RANDOM, 1))
    random[1::2] &= members.any(axis=0)
    masks = np.unique(
        np.concatenate([members, ~members, alone, random, measured.unfinished()]), axis=0
    )
    keep = [bool(mask.any()) and not measured.complete(mask) for mask in masks]
    return np.asarray(masks[keep])


def _information(predictions: Floats, variance: float) -> Floats:
    """What a noisy look at each of s assignments tells about which answer holds, in nats; (s,).

    ``predictions``: (k, s) means, equally likely; normal noise of that variance. The estimate by
    distances between the means (Kolchinsky and Tracey, 2017), scaled to be exact for two means that
    are close, and for all that are far apart.
    """
    apart = (predictions[:, None] - predictions[None, :]) ** 2
    told: Floats = -np.mean(np.log(np.mean(np.exp(apart / (-4.0 * variance)), axis=1)), axis=0)
    return told
