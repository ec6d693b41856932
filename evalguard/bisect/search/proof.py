"""Proof: the most probable answer, how far it is proven, and what must be measured for that.

A culprit is pivotal: of two assignments that differ in nothing else, one drifts and the other
does not. And with all culprits at reference the drift is inside the margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log2

import numpy as np

from evalguard.bisect.search.belief import Belief, Fit
from evalguard.bisect.search.block_estimates import deviations, few_change
from evalguard.bisect.search.buildable import Buildable
from evalguard.bisect.search.components import Component, Structure
from evalguard.bisect.search.measurements import Measurements
from evalguard.core.question import Floats, Mask
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.estimate import t_estimate
from evalguard.stats.sign_flip import sign_flip
from evalguard.stats.skewness import careful_t


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


STEP = 0.3  # of the margin: what a culprit changes at least
_TIMES_THE_OTHERS = 2.0  # what they move: where any setting does the same, none is guilty
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
        (sole,) = structure.members
        return Plan(
            proofs=(Proof(setting=sole, without=repaired, included=whole),), repaired=repaired
        )
    attempts = [
        _proof(member, contexts, buildable)
        for component in structure.components
        for member, contexts in _contexts(component, buildable, measured, repaired).items()
        if member in structure.members
    ]
    proofs = {proof.setting: proof for proof in attempts if proof is not None}
    return Plan(
        proofs=tuple(proofs.values()),
        repaired=repaired if buildable.likely(repaired) else None,
        sufficing=_sufficing(structure, proofs, buildable, n),
    )


def proven(
    plan: Plan, fit: Fit, measured: Measurements, *, margin: float, z: float, counted: bool
) -> set[int]:
    """The settings whose proof holds: a step that is material, of an effect that is not a jitter.

    That these documents scored worse because of it, and would again. Whether others would, only
    ``real`` and ``counted_p_values`` tell; ``counted``: the latter is asked, which counts what the
    others do.

    ``fit``: on all that was measured, complete or not.
    """
    guilty = set()
    noise_floor = 0.0 if counted else z * measured.others_error(plan.repaired)
    for proof in plan.proofs:
        if not (measured.complete(proof.included) and measured.complete(proof.without)):
            continue
        step = measured.mean(proof.included) - measured.mean(proof.without)
        sure = counted or fit.certainty(proof.setting) >= z
        if abs(step) >= max(STEP * margin, noise_floor) and sure:
            guilty.add(proof.setting)
    return guilty


def own_p_values(plan: Plan, fit: Fit, measured: Measurements) -> dict[int, float]:
    """One-sided p-value of each member's own effect over the documents, of those proven on all.

    The effect on each document, as all assignments together estimate it; where scores change in
    few documents, the step itself, whose jitter can be counted. An effect against the candidate's
    drift hides some of it: nobody asked for one, so that its p-value counts twice.

    ``fit``: on what was measured on all documents.
    """
    p_values = {}
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
        p_values[proof.setting] = p_value if along else min(2.0 * p_value, 1.0)
    return p_values


def counted_p_values(plan: Plan, measured: Measurements) -> dict[int, float]:
    """One-sided p-value of each member, of documents that change or do not, all settings counted.

    Closed testing (Marcus, Peritz and Gabriel 1976): a setting is named where the paired test
    rejects of every set of settings with it in that they do nothing; and what a set does is what
    the candidate shows with that set in. Sets that hold other culprits move more documents the same
    way. What innocent ones add is at worst all that they put right where the culprits are out: so
    much stands against the setting's own step. A setting that acts against the candidate's drift
    has Holm's correction over all settings in place of that.

    So settings that move no document cost nothing: 5 of 15 documents, each for the worse, are
    p = 0.016 among eight settings as among two. Where the others move more than half as many as the
    setting does, it is one of many, and the p-value is 1.
    """
    if plan.repaired is None or not measured.complete(plan.repaired):
        return {}
    p_values = {}
    rest_drift = measured.drift(plan.repaired)
    for proof in plan.proofs:
        if not (measured.complete(proof.included) and measured.complete(proof.without)):
            continue
        effect = measured.drift(proof.included) - measured.drift(proof.without)
        alone = np.arange(proof.included.size) == proof.setting
        if measured.complete(alone) and measured.drift(alone).any():
            effect = measured.drift(
                alone
            )  # beside another culprit of the same documents it is less
        if float(np.sum(effect)) * measured.total >= 0.0:
            sign = 1.0 if measured.total >= 0.0 else -1.0
            moved = np.where(effect != 0.0, effect, np.minimum(sign * rest_drift, 0.0) * sign)
            one_of_many = np.sum(np.abs(effect)) < _TIMES_THE_OTHERS * np.sum(np.abs(rest_drift))
            p_values[proof.setting] = 1.0 if one_of_many else paired_p(sign * moved)
        else:
            p_values[proof.setting] = min(2.0 * len(measured.settings) * paired_p(-effect), 1.0)
    return p_values


def can_be_named(measured: Measurements, mask: Mask, *, level: float) -> bool:
    """Whether so many documents are worse under an assignment that the test could blame a setting.

    True where that is not known.
    """
    if not measured.complete(mask):
        return True
    drift = measured.drift(mask)
    return mcnemar_mid_p(int(np.count_nonzero(drift > 0.0)), 0) <= level


def real(p_values: dict[int, float], measured: Measurements, *, level: float) -> frozenset[int]:
    """The settings whose own effect the paired test calls real.

    Rounding alone flips answers that are nearly tied, the same ones wherever its cause is in: such
    a step is certain on these documents and chance all the same. So a setting needs the evidence
    that the gate asks of a metric: Holm's step-down over all settings that were searched, whether
    they are measured or not. And steps that make the candidate's drift
    are no more real than that drift: where the test calls it chance, only a setting that hides
    drift can tell that there is some.
    """
    remaining = len(measured.settings)
    named = set()
    for setting, p_value in sorted(p_values.items(), key=lambda item: item[1]):
        if p_value * remaining > level:
            break
        named.add(setting)
        remaining -= 1
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
    noise_floor = z * measured.others_error(plan.repaired)
    if plan.missing(measured):
        return False
    steps = [measured.mean(p.included) - measured.mean(p.without) for p in plan.proofs]
    return any(abs(step) < noise_floor for step in steps)


def _contexts(
    component: Component, buildable: Buildable, measured: Measurements, repaired: Mask
) -> dict[int, list[Mask]]:
    """Assignments that hold a member, by member, the best first: at one of them it is pivotal."""
    n = repaired.size
    whole = np.ones(n, dtype=np.bool_)
    eye = np.eye(n, dtype=np.bool_)
    together = component.kind == "together"
    near = {member: eye[member] for member in component.members}
    if together:
        near = dict.fromkeys(component.members, eye[list(component.members)].any(axis=0))
    contexts = {
        member: [alone, buildable.completed(alone), repaired | alone, whole]
        for member, alone in near.items()
    }
    if together:
        at_base = {m.tobytes(): m for member, m in near.items() for m in (m, m & ~eye[member])}
        costs = sum(measured.cost(mask, 1.0) for mask in at_base.values())
        if sum(measured.cost(~eye[member], 1.0) for member in near) < costs:
            return {member: [whole, *masks] for member, masks in contexts.items()}
    return contexts


def _sufficing(
    structure: Structure, proofs: dict[int, Proof], buildable: Buildable, n: int
) -> tuple[Mask, ...]:
    """The members of what acts only together, where all of them are proven from the candidate."""
    at_candidate = {member for member, proof in proofs.items() if proof.included.all()}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The most probable answer, what proves it, and who is proven so far.

    ``missing``: assignments that the proof still needs on all documents; ``unseen``: those that an
    answer which is not certain needs on some of them. ``p_values``: of the steps of those measured
    on all documents; ``by_chance``: who would be proven but for that.
    """

    belief: Belief
    plan: Plan
    fit: Fit
    proven: frozenset[int]
    missing: tuple[Mask, ...]
    unseen: tuple[Mask, ...]
    p_values: Mapping[int, float] = field(default_factory=dict)
    by_chance: frozenset[int] = frozenset()

    @property
    def open(self) -> bool:
        """Whether the proof needs anything that is not measured."""
        return bool(self.missing or self.unseen)
