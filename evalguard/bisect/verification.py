"""Verification: what must be measured on all documents before a setting is called guilty.

A culprit is pivotal: of two assignments that differ in nothing else, one drifts and the other
does not. And with all culprits at reference the drift is inside the margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evalguard.bisect.blocks import few_change
from evalguard.bisect.choice import Component
from evalguard.bisect.measurement import Measurements, Rows
from evalguard.bisect.oracle import Buildable, Floats, Mask
from evalguard.bisect.posterior import SMALL
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.bootstrap import sign_flip
from evalguard.stats.probability import t_estimate
from evalguard.stats.skewed.corrected_t import careful_t

STEP = 0.3  # of the margin: what a culprit changes at least
FIRST = 0.25  # share of the documents on which a doubtful answer is looked at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Two assignments that differ in one setting."""

    setting: int
    without: Mask
    included: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What verifies a structure.

    Attributes:
        proofs: one for each member that can be proven.
        repaired: the candidate with all members at reference, and with what needs them; None if it
            cannot be built.
        sufficing: members of what acts only together, proven from the candidate, with nobody else:
            that shows whether it takes a further setting to make them act.
    """

    proofs: tuple[Proof, ...]
    repaired: Mask | None
    sufficing: tuple[Mask, ...] = ()

    def needed(self) -> list[Mask]:
        """All assignments that must be measured on all documents."""
        pairs = [mask for proof in self.proofs for mask in (proof.included, proof.without)]
        masks = [*pairs, *([] if self.repaired is None else [self.repaired])]
        return list({mask.tobytes(): mask for mask in masks if mask.any()}.values())

    def missing(self, measured: Measurements) -> tuple[Mask, ...]:
        """Those that are not measured on all documents."""
        return tuple(mask for mask in self.needed() if not measured.complete(mask))

    def unseen(self, measured: Measurements) -> tuple[Mask, ...]:
        """What is to suffice, and is measured on too few documents to show that it does."""
        return tuple(mask for mask in self.sufficing if measured.cost(mask, FIRST) > 0.0)


def plan_for(
    structure: Structure, buildable: Buildable, measured: Measurements, *, clear: frozenset[int]
) -> Plan:
    """Choose for every member the two assignments that prove it.

    They are the nearest to the base, which carry nobody else's jitter; for settings that act only
    together the nearest to the candidate, where that costs less: there it takes one measurement for
    each, and the candidate itself, which is known. For a single culprit that is ``clear`` these are
    the candidate and the repaired one, and nothing is left to measure for it alone.
    """
    n = len(measured.settings)
    whole = np.ones(n, dtype=np.bool_)
    repaired = buildable.reduced(~structure.mask(n))
    single = len(structure.members) == np.sum(~repaired) == 1 and not buildable.refused(repaired)
    if single and structure.members <= clear:
        (one,) = structure.members
        return Plan(
            proofs=(Proof(setting=one, without=repaired, included=whole),), repaired=repaired
        )
    found = [
        _proof(one, contexts, buildable)
        for component in structure.components
        for one, contexts in _contexts(component, buildable, measured, repaired).items()
        if one in structure.members
    ]
    proofs = {proof.setting: proof for proof in found if proof is not None}
    return Plan(
        proofs=tuple(proofs.values()),
        repaired=repaired if buildable.likely(repaired) else None,
        sufficing=_sufficing(structure, proofs, buildable, n),
    )


def proven(plan: Plan, fit: Fit, measured: Measurements, *, margin: float, z: float) -> set[int]:
    """The settings whose proof holds: a step that is material, of an effect that is not a jitter.

    That these documents scored worse because of it, and would again. Whether others would, only
    ``real`` tells.

    ``fit``: on all that was measured, complete or not.
    """
    guilty = set()
    others = z * measured.others_error(plan.repaired)
    for proof in plan.proofs:
        if not (measured.complete(proof.included) and measured.complete(proof.without)):
            continue
        step = measured.mean(proof.included) - measured.mean(proof.without)
        if abs(step) >= max(STEP * margin, others) and fit.certainty(proof.setting) >= z:
            guilty.add(proof.setting)
    return guilty


def own_p_values(plan: Plan, fit: Fit, measured: Measurements) -> dict[int, float]:
    """One-sided p-value of each member's own effect over the documents, of those proven on all.

    The effect on each document, as all assignments together estimate it; where scores change in
    few documents, the step itself, whose jitter can be counted. An effect against the candidate's
    drift hides some of it: nobody asked for one, so that its p-value counts twice.

    ``fit``: on what was measured on all documents.
    """
    found = {}
    finished = None if measured.counts_flips else measured.finished_drifts()
    for proof in plan.proofs:
        if not (measured.complete(proof.included) and measured.complete(proof.without)):
            continue
        if finished is None:
            effect = measured.drift(proof.included) - measured.drift(proof.without)
        else:
            effect = fit.weights[fit.surest(proof.setting)] @ finished
        along = float(np.sum(effect)) * measured.total >= 0.0
        p_value = paired_p(effect if np.sum(effect) > 0.0 else -effect)
        found[proof.setting] = p_value if along else min(2.0 * p_value, 1.0)
    return found


def real(p_values: dict[int, float], measured: Measurements, *, level: float) -> frozenset[int]:
    """The settings whose own effect the paired test calls real.

    Rounding alone flips answers that are nearly tied, the same ones wherever its cause is in: such
    a step is certain on these documents and chance all the same. So a setting needs the evidence
    that the gate asks of a metric: Holm's step-down over all settings that were searched, whether
    they are measured or not. And steps that make the candidate's drift
    are no more real than that drift: where the test calls it chance, only a setting that hides
    drift can tell that there is some.
    """
    left = len(measured.settings)
    named = set()
    for one, p_value in sorted(p_values.items(), key=lambda item: item[1]):
        if p_value * left > level:
            break
        named.add(one)
        left -= 1
    whole = measured.drift(np.ones(len(measured.settings), dtype=np.bool_))
    if paired_p(whole if measured.total >= 0.0 else -whole) > level and len(named) < 2:
        return frozenset()
    return frozenset(named)


def paired_p(d: Floats) -> float:
    """P-value of the one-sided paired test that the mean of d, (n,), is above 0.

    Of right and wrong answers McNemar's mid-p, as of the gate; else the signs where few documents
    change, and where many do Student's t, or what is more careful of skewed documents. 1.0 where
    nothing differs.
    """
    moved = d[d != 0.0]
    if not moved.size:
        return 1.0
    if np.all(np.abs(moved) == abs(moved[0])):
        return mcnemar_mid_p(int(np.sum(moved > 0.0)), int(np.sum(moved < 0.0)))
    spread = float(np.std(d, ddof=1)) / np.sqrt(d.size)
    if few_change(d) or spread == 0.0:
        return sign_flip(d).p_value
    plain = t_estimate(
        float(np.mean(d)), float(spread), df=d.size - 1, confidence=0.95, method="paired-t"
    )
    return careful_t(plain, d, None, 1.0).p_value


def drowned(plan: Plan, measured: Measurements, *, z: float) -> bool:
    """Whether a culprit's step is no more than what the others do, all of it measured.

    Only where scores change in few documents: there, no other measurement can make it more.
    """
    others = z * measured.others_error(plan.repaired)
    if plan.missing(measured):
        return False
    steps = [measured.mean(p.included) - measured.mean(p.without) for p in plan.proofs]
    return any(abs(step) < others for step in steps)


def _contexts(
    component: Component, buildable: Buildable, measured: Measurements, repaired: Mask
) -> dict[int, list[Mask]]:
    """Assignments that hold a member, by member, the best first: at one of them it is pivotal."""
    n = repaired.size
    whole = np.ones(n, dtype=np.bool_)
    eye = np.eye(n, dtype=np.bool_)
    together = component.kind == "together"
    near = {one: eye[one] for one in component.members}
    if together:
        near = dict.fromkeys(component.members, eye[list(component.members)].any(axis=0))
    contexts = {
        one: [alone, buildable.completed(alone), repaired | alone, whole]
        for one, alone in near.items()
    }
    if together:
        at_base = {m.tobytes(): m for one, m in near.items() for m in (m, m & ~eye[one])}
        costs = sum(measured.cost(mask, 1.0) for mask in at_base.values())
        if sum(measured.cost(~eye[one], 1.0) for one in near) < costs:
            return {one: [whole, *masks] for one, masks in contexts.items()}
    return contexts


def _sufficing(
    structure: Structure, proofs: dict[int, Proof], buildable: Buildable, n: int
) -> tuple[Mask, ...]:
    """The members of what acts only together, where all of them are proven from the candidate."""
    at_candidate = {one for one, proof in proofs.items() if proof.included.all()}
    masks = [
        np.isin(np.arange(n), component.members)
        for component in structure.components
        if component.kind == "together" and at_candidate.issuperset(component.members)
    ]
    return tuple(mask for mask in masks if buildable.likely(mask))


def _proof(one: int, contexts: list[Mask], buildable: Buildable) -> Proof | None:
    only = np.arange(contexts[0].size) == one
    for included in contexts:
        without = included & ~only
        if buildable.likely(included, without):
            return Proof(setting=one, without=without, included=included)
    return None


# Fit: the effects of a structure's components, by least squares.


_FLOOR = 1e-3  # of the margin: no measurement is believed closer than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Effects with standard errors, in the order of the structure's components.

    ``weights``: (components, rows): each effect is the rows' drifts, weighed.
    """

    structure: Structure
    effects: Floats
    errors: Floats
    weights: Floats

    def of(self, one: int) -> list[int]:
        """Numbers of the components that a member is in, the largest effect first."""
        inside = [at for at, c in enumerate(self.structure.components) if one in c.members]
        return sorted(inside, key=lambda at: -abs(self.effects[at]))

    def largest(self, one: int) -> float:
        """The largest effect that a member has a part in."""
        return float(self.effects[self.of(one)[0]])

    def alone(self, one: int) -> float:
        """What a member does alone; of one that does nothing alone, its largest effect."""
        own = [at for at in self.of(one) if self.structure.components[at].acts_alone]
        return float(self.effects[own].sum()) if own else self.largest(one)

    def certainty(self, one: int) -> float:
        """Standard errors by which the surest effect of a member is away from 0."""
        at = self.surest(one)
        return abs(float(self.effects[at] / self.errors[at]))

    def surest(self, one: int) -> int:
        """Number of the component whose effect is surest, of those that a member is in."""
        return max(self.of(one), key=lambda at: abs(float(self.effects[at] / self.errors[at])))


def fit_effects(structure: Structure, rows: Rows, *, margin: float) -> Fit:
    """Generalised least squares; jitter and what innocent settings may do are the noise."""
    masks = rows.masks
    acting = np.array([c.acts(masks) for c in structure.components], dtype=np.float64).T
    acting = acting.reshape(len(masks), len(structure.components))
    plain = masks.astype(np.float64)
    noise = rows.covariance + rows.floor(_FLOOR * margin) ** 2 * np.eye(len(masks))
    noise += (SMALL * margin) ** 2 / masks.shape[1] * (plain @ plain.T)
    solved = np.linalg.solve(noise, np.column_stack([acting, rows.sigma]))
    inverse = np.linalg.pinv(acting.T @ solved[:, :-1])
    weights = inverse @ solved[:, :-1].T
    return Fit(
        structure=structure,
        effects=weights @ rows.sigma,
        errors=np.sqrt(np.diag(inverse)),
        weights=weights,
    )


# Structure: a possible answer, and whom it blames.


_MOST = 10  # settings of which all subsets are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Components, and whether the rest of the drift is spread over all settings.

    ``members``: the settings that it blames, by number.
    """

    components: tuple[Component, ...]
    diffuse: bool
    members: frozenset[int]

    def mask(self, n: int) -> Mask:
        """(n,): its members at their candidate value."""
        inside = np.zeros(n, dtype=np.bool_)
        inside[list(self.members)] = True
        return inside


def blame_setting(components: Iterable[Component]) -> frozenset[int]:
    """Who must be put right so that none of the components acts.

    What acts only together is put right by any of its members: where one is to blame for something
    else, the others are not to blame for what they do beside it.
    """
    guilty = frozenset(one for c in components if c.acts_alone for one in c.members)
    pairs = [frozenset(c.members) for c in components if not c.acts_alone]
    return guilty.union(*[members for members in pairs if not members & guilty])


NOTHING = Structure(components=(), diffuse=False, members=frozenset())


def material(sizes: Sequence[float], margin: float) -> list[int]:
    """Which effects it takes to get past the margin; the others could stay.

    The largest are added up until the margin is passed: that is a minimal failing set. It is left
    out, and the rest is asked again, for either sign.
    """
    if all(abs(size) > margin for size in sizes):
        return list(range(len(sizes)))
    order = sorted(range(len(sizes)), key=lambda at: -abs(sizes[at]))
    kept: list[int] = []
    for sign in (1.0, -1.0):
        side = [at for at in order if sign * sizes[at] > 0.0]
        while sum(abs(sizes[at]) for at in side) > margin:
            total = 0.0
            while total <= margin:
                total += abs(sizes[side[0]])
                kept.append(side.pop(0))
    return sorted(kept)


def overlapping(components: Sequence[Component]) -> bool:
    """Whether two different components have a setting in common."""
    distinct = set(components)
    return sum(len(c.members) for c in distinct) > len({one for c in distinct for one in c.members})


def blame_pair(
    components: Sequence[Component], mean: Floats, root: Floats, margin: float
) -> frozenset[int] | None:
    """Who is to blame for components that have settings in common; None if these are too many.

    The same drift has several descriptions there: a setting alone, another alone, and what they do
    more together; or what either does, and the rest of each. So what counts are the drifts of the
    subsets of the settings, which are the same: of those past the margin the smallest is left out,
    and the rest is asked again, for either sign.

    ``mean``: (c,) of the effects; ``root``: (c, ...) of their covariance.
    """
    settings = sorted({one for c in components for one in c.members})
    if len(settings) > _MOST:
        return None
    subsets = _subsets(len(settings))
    inside = np.zeros((len(subsets), settings[-1] + 1), dtype=np.bool_)
    inside[:, settings] = subsets
    acting = np.array([c.acts(inside) for c in components], dtype=np.float64).T
    expected = acting @ mean
    drift = np.copysign(np.hypot(expected, np.linalg.norm(acting @ root, axis=1)), expected)
    guilty = np.zeros(len(settings), dtype=np.bool_)
    for sign in (1.0, -1.0):
        while True:
            failing = (sign * drift > margin) & ~(subsets & guilty).any(axis=1)
            if not failing.any():
                break
            fewest = failing & (subsets.sum(axis=1) == subsets[failing].sum(axis=1).min())
            guilty |= subsets[np.argmax(np.where(fewest, sign * drift, -np.inf))]
    return frozenset(settings[at] for at in np.flatnonzero(guilty))


@lru_cache(maxsize=_MOST)
def _subsets(count: int) -> Mask:
    """(2 ** count, count): all subsets of so many."""
    inside: Mask = (np.arange(1 << count)[:, None] >> np.arange(count)) % 2 == 1
    return inside
