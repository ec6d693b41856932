"""Choice: which measurement tells most about who is guilty, for what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.answer_draws import Draws
from evalguard.bisect.buildable import LIKELY_FAILS, Buildable
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.oracle import Floats, Mask
from evalguard.bisect.search_probe import LAUNCH

_RANDOM = 64  # random assignments proposed
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
    draws: Draws,
    buildable: Buildable,
    rng: np.random.Generator,
) -> Choice | None:
    """The measurement with the most information per cost; None if nothing can be learnt.

    ``draws``: equally likely answers, to be told apart. Of what would be needed to prove one of
    them anyway, only the rest of the cost counts.
    """
    members, partners = draws.members, draws.partners
    masks = _proposed(measured, members, rng)
    risks = buildable.risks(masks)
    masks, risks = masks[risks < LIKELY_FAILS], risks[risks < LIKELY_FAILS]
    if not len(masks):
        return None
    predictions = draws.predict(masks)
    noise = measured.noise()
    glance = _information(predictions[::2], noise, (_GLANCE,))[0]
    finalists = np.argsort(-glance * (1.0 - risks), kind="stable")[:_FINALISTS]
    told = _information(predictions[:, finalists], noise, _SHARES)
    best: Choice | None = None
    for place, at in enumerate(finalists):
        mask, risk = masks[at], float(risks[at])
        done = measured.measured(mask)
        known = float(np.interp(done, (0.0, *_SHARES), (0.0, *told[:, place])))
        total = measured.total
        drifting = float(np.clip(np.mean(predictions[:, at]) / total, 0.0, 1.0)) if total else 0.0
        wanted = _SAVED * _needed(mask, members, partners)
        for share, all_told in zip(_SHARES, told[:, place].tolist(), strict=True):
            if measured.cost(mask, share) <= 0.0:  # no block ends between here and there
                continue
            cost = measured.expected_cost(mask, share, drifting)
            gain = (1.0 - risk) * (all_told - known)
            rate = gain / ((1.0 - risk) * (1.0 - wanted) * cost + risk * LAUNCH)
            if best is None or rate > best.rate:
                best = Choice(mask=mask, share=share, rate=rate)
    return best


def _needed(mask: Mask, members: Mask, partners: Mask) -> float:
    """How probably this assignment is needed, about, to prove the answer: it is a member alone, all
    but a member that acts only together with another, or all but the members.
    """
    needed = np.all(members != mask, axis=1)
    if mask.sum() == 1:
        needed = needed | (members & ~partners)[:, mask][:, 0]
    if mask.sum() == mask.size - 1:
        needed = needed | partners[:, ~mask][:, 0]
    return float(np.mean(needed))


def _proposed(measured: Measurements, members: Mask, rng: np.random.Generator) -> Mask:
    """Assignments worth a thought: what the answers say, random subsets, unfinished ones."""
    n = len(measured.settings)
    suspects = members.any(axis=0)
    random = rng.random((_RANDOM, n)) < rng.choice(_DENSITIES, size=(_RANDOM, 1))
    random[1::2] &= suspects
    alone = np.eye(n, dtype=np.bool_)[suspects]
    proposed = [members, ~members, alone, ~alone, random]
    masks = {mask.tobytes(): mask for mask in np.concatenate([*proposed, measured.unfinished()])}
    done = measured.finished()
    return np.array([mask for key, mask in masks.items() if key not in done]).reshape(-1, n)


def _information(predictions: Floats, variance: float, shares: Sequence[float]) -> Floats:
    """What a look at each of s assignments tells about which answer holds, in nats; (shares, s).

    ``predictions``: (k, s) means, equally likely; normal noise, of ``variance`` on all documents.
    The estimate by distances between the means (Kolchinsky and Tracey, 2017), scaled to be exact
    for two means that are close, and for all that are far apart. ``shares`` rise.
    """
    distinct: dict[bytes, int] = {}  # answers whose effects are known well predict the same
    number = [distinct.setdefault(row.tobytes(), len(distinct)) for row in predictions]
    _, first, counts = np.unique(number, return_index=True, return_counts=True)
    weights = (counts / len(number)).astype(np.float32)
    exact = (predictions[first] / np.sqrt(4.0 * variance)).T
    means = (exact - exact[:, :1]).astype(np.float32)
    apart = means[:, :, None] - means[:, None, :]
    near = np.exp(apart * apart * np.float32(-shares[0]))
    told = []
    for share, longer in zip(shares, (*shares[1:], shares[-1]), strict=True):
        with np.errstate(invalid="ignore"):  # a BLAS may say so of numbers that all are finite
            told.append(-(np.log(near @ weights) @ weights))
        near = near ** (longer / share) if longer / share != 2.0 else near * near
    return np.array(told, dtype=np.float64)
