"""Choice: which measurement tells most about who is guilty, for what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb, inf, log2
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.estimates import deviations
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.oracle import LAUNCH, LIKELY_FAILS, Buildable, Floats, Mask

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
        wanted = _SAVED * _needed(mask, members, partners)
        for share, all_told in zip(_SHARES, told[:, place].tolist(), strict=True):
            cost = measured.cost(mask, share)
            if cost <= 0.0:  # no block ends between here and there
                continue
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


# Components: the ways in which settings make drift, one on/off function of an assignment each.
#
# A single setting acts when it is in. A pair or three act only together (all in); a pair is
# redundant (one in is enough). The drift of an assignment is the sum of the effects of what acts
# in it.


Kind = Literal["additive", "together", "redundant"]

# Prior odds that one more component is there, shared among all of its kind and size.
_ADDITIVE, _PAIR, _THREE = 0.5, 0.04, 0.01
_BESIDE = 0.3  # likewise, that settings of which each drifts alone do more or less together
MOST_IN_THREES = 16  # settings of which threes are considered
_ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component; ``members`` are settings by number, in order."""

    kind: Kind
    members: tuple[int, ...]

    @property
    def acts_alone(self) -> bool:
        """Whether one member is enough."""
        return self.kind == "redundant" or len(self.members) == 1

    def acts(self, masks: Mask) -> Mask:
        """Whether it acts in each assignment; ``masks``: (..., n_settings), the result (...)."""
        inside = masks[..., list(self.members)]
        if self.kind == "redundant":
            inside = ~inside
        together: Mask = np.logical_and.reduce(inside, axis=-1)
        return ~together if self.kind == "redundant" else together


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Everything that is considered, J components.

    Attributes:
        members: (J, 3) settings by number; a single stands there three times, a pair with its
            second one twice.
        redundant: (J,) whether one member is enough.
        log_prior: (J,).
    """

    members: NDArray[np.intp]
    redundant: Mask
    log_prior: Floats

    def __getitem__(self, number: int) -> Component:
        members = tuple(sorted(set(self.members[number].tolist())))
        kind: Kind = "additive" if len(members) == 1 else "together"
        return Component(kind="redundant" if self.redundant[number] else kind, members=members)

    def acting(self, masks: Mask, numbers: NDArray[np.intp] | slice = _ALL) -> Mask:
        """(m, J): which components act in each of m assignments, (m, n_settings)."""
        members = self.members[numbers]
        one, two, three = (masks[:, members[:, place]] for place in range(3))
        return np.where(self.redundant[numbers], one | two, one & two & three)


@lru_cache(maxsize=8)
def components_of(
    n: int,
    suspects: tuple[int, ...],
    drifting: tuple[int, ...],
    weights: tuple[float, ...] | None = None,
) -> Components:
    """All singles and pairs of n settings, and threes of the suspects.

    Whoever is suspected, a three's prior is that of one among all threes of n settings.
    ``drifting``: settings that drift alone. Interactions are likelier among them than anywhere else
    (effect heredity; Hamada and Wu 1992). ``weights``: (n,), above 0, how likely each setting is to
    be a member beside the others; None: all alike.
    """
    few = _singles_and_pairs(n)
    threes = np.array(list(combinations(suspects, 3)), dtype=np.intp).reshape(-1, 3)
    pairs = comb(n, 2)
    sizes = [n, pairs, pairs, len(threes)]
    odds = [_ADDITIVE, _PAIR, _PAIR, _THREE]
    shared = [n, pairs, pairs, comb(n, 3)]
    log_odds = [np.log(share / max(among, 1)) for share, among in zip(odds, shared, strict=True)]
    members, log_prior = np.concatenate([few, threes]), np.repeat(log_odds, sizes)
    if weights is not None:
        log_prior = log_prior + _tilt(np.log(np.array(weights))[members], sizes)
    redundant = np.repeat([False, False, True, False], sizes)
    beside = np.isin(members, drifting).all(axis=1) & ~redundant
    beside[:n] = False
    if beside.any():
        log_prior[beside] = np.log(_BESIDE / np.sum(beside))
    return Components(members=members, redundant=redundant, log_prior=log_prior)


def _tilt(log_weights: Floats, sizes: Sequence[int]) -> Floats:
    """What weights add to log priors, (J,): of each kind the chances stay the same in all.

    A component weighs as its members do on (geometric) average; ``log_weights``: (J, 3).
    """
    first, middle, last = log_weights.T
    members = np.where(middle == last, 0.5 * (first + last), log_weights.mean(axis=1))
    kinds = np.split(members, np.cumsum(sizes)[:-1])
    return np.concatenate(
        [one - np.log(np.mean(np.exp(one))) if one.size else one for one in kinds]
    )


@lru_cache(maxsize=8)
def _singles_and_pairs(n: int) -> NDArray[np.intp]:
    """Members of all singles, of all pairs that act together, of all redundant ones."""
    singles = np.repeat(np.arange(n)[:, None], 3, axis=1)
    one, two = np.triu_indices(n, 1)
    pairs = np.column_stack([one, two, two])
    return np.concatenate([singles, pairs, pairs])


# Draws: equally likely answers, to choose the measurement that tells them apart.


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Answers with effects, k of them, as drawn from what is believed.

    Attributes:
        components: (k, most): numbers of the components of each, -1 where there are fewer.
        effects: (k, most): of those, 0 where there are fewer.
        each: (k, n_settings): what every setting does beside them, on a diffuse ground.
        of: all components.
    """

    components: NDArray[np.intp]
    effects: Floats
    each: Floats
    of: Components

    @property
    def members(self) -> Mask:
        """(k, n_settings): the settings that each blames."""
        blamed = np.zeros(self.each.shape, dtype=np.bool_)
        for number in range(self.components.shape[1]):
            rows = np.flatnonzero(self.components[:, number] >= 0)
            blamed[rows[:, None], self.of.members[self.components[rows, number]]] = True
        return blamed

    @property
    def partners(self) -> Mask:
        """(k, n_settings): those of them that act only together with another."""
        held = self.of.members[self.components]
        several = (held != held[:, :, :1]).any(axis=2) & ~self.of.redundant[self.components]
        blamed = np.zeros(self.each.shape, dtype=np.bool_)
        rows, places = np.nonzero(several & (self.components >= 0))
        blamed[rows[:, None], held[rows, places]] = True
        return blamed

    def predict(self, masks: Mask) -> Floats:
        """(k, s): drift of each of s assignments, (s, n_settings), by each answer."""
        used, places = np.unique(self.components, return_inverse=True)
        effects = np.zeros((len(self.components), used.size))
        rows = np.arange(len(self.components))[:, None]
        np.add.at(effects, (rows, places.reshape(self.components.shape)), self.effects)
        drift: Floats = effects @ self.of.acting(masks, used).T.astype(np.float64)
        if self.each.any():
            drift += self.each @ masks.T.astype(np.float64)
        return drift


# Effort: how sure a search must be, and how much it may spend before it gives up.


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
