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
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Measure ``mask`` up to ``share`` of the documents; ``rate``: nats per full evaluation."""

    mask: Mask
    share: float
    rate: float


def next_measurement(
    measured: Measurements,
    sampled: list[Draw],
    buildable: Buildable,
    rng: np.random.Generator,
) -> Choice | None:
    """The measurement with the most information per cost; None if nothing can be learnt."""
    masks = _proposed(measured, sampled, rng)
    wanted = _wanted(sampled, len(measured.settings))
    risks = buildable.risks(masks)
    masks, risks = masks[risks < LIKELY_FAILS], risks[risks < LIKELY_FAILS]
    if not len(masks):
        return None
    predictions = np.array([draw.predict(masks) for draw in sampled])
    order = np.argsort(-np.var(predictions, axis=0) * (1.0 - risks), kind="stable")
    noise = measured.noise()
    best: Choice | None = None
    for at in order[:_FINALISTS]:
        mask = masks[at]
        done = measured.measured(mask)
        for share in _SHARES:
            if share <= done + 1e-9:
                continue
            cost = measured.cost(mask, share)
            told = _information(predictions[:, at], noise / share)
            if done:
                told -= _information(predictions[:, at], noise / done)
            useful = wanted.get(mask.tobytes(), 0) / len(sampled)
            expected = (1.0 - risks[at]) * cost * (1.0 - 0.9 * useful) + risks[at] * LAUNCH
            rate = (1.0 - risks[at]) * told / expected
            if best is None or rate > best.rate:
                best = Choice(mask=mask, share=share, rate=rate)
    return best


def _proposed(measured: Measurements, sampled: list[Draw], rng: np.random.Generator) -> Mask:
    """Assignments worth a thought: what the suspects say, random subsets, unfinished ones."""
    n = len(measured.settings)
    inclusion = np.zeros(n)
    proposed: list[Mask] = []
    for draw in sampled:
        members = np.zeros(n, dtype=np.bool_)
        members[list(draw.structure.members)] = True
        inclusion += members / len(sampled)
        proposed += [members, ~members]
        for one in draw.structure.members:
            alone = np.zeros(n, dtype=np.bool_)
            alone[one] = True
            proposed.append(alone)
    suspects = inclusion > 0.5 / len(sampled)
    for number in range(_RANDOM):
        inside = rng.random(n) < rng.choice([0.25, 0.5, 0.5, 0.75])
        proposed.append(inside & suspects if number % 2 else inside)
    proposed += measured.unfinished()
    masks = np.unique(np.array(proposed), axis=0)
    keep = np.array([mask.any() and not measured.complete(mask) for mask in masks])
    kept: Mask = masks[keep]
    return kept


def _wanted(sampled: list[Draw], n: int) -> Counter[bytes]:
    """How many of the drawn structures an assignment would be needed to prove."""
    counts: Counter[bytes] = Counter()
    for draw in sampled:
        members = np.zeros(n, dtype=np.bool_)
        members[list(draw.structure.members)] = True
        counts[(~members).tobytes()] += 1
        for one in draw.structure.members:
            alone = np.zeros(n, dtype=np.bool_)
            alone[one] = True
            counts[alone.tobytes()] += 1
    return counts


def _information(predictions: Floats, variance: float) -> float:
    """Lower bound (Kolchinsky and Tracey, 2017) of what a noisy look tells about which draw holds.

    ``predictions``: (k,) equally likely means; normal noise of that variance. In nats.
    """
    apart = (predictions[:, None] - predictions[None, :]) ** 2 / (4.0 * variance)
    return float(-np.mean(np.log(np.mean(np.exp(-apart), axis=1))))
