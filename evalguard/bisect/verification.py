"""Verification: what must be measured on all documents before a setting is called guilty.

A culprit is pivotal: of two assignments that differ in nothing else, one drifts and the other does
not. And with all culprits at reference the drift is inside the margin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.buildable import Buildable
from evalguard.bisect.fit import Fit
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.oracle import Mask
from evalguard.bisect.structure import Structure

_STEP = 0.3  # of the margin: what a culprit changes at least


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
    """

    proofs: tuple[Proof, ...]
    repaired: Mask | None

    def needed(self) -> list[Mask]:
        """All assignments that must be measured on all documents."""
        pairs = [mask for proof in self.proofs for mask in (proof.included, proof.without)]
        masks = [*pairs, *([] if self.repaired is None else [self.repaired])]
        return list({mask.tobytes(): mask for mask in masks if mask.any()}.values())

    def missing(self, measured: Measurements) -> list[Mask]:
        """Those that are not measured on all documents."""
        return [mask for mask in self.needed() if not measured.complete(mask)]


def plan_for(structure: Structure, buildable: Buildable, n: int) -> Plan:
    """Choose for every member the two assignments nearest to the base that prove it."""
    members = structure.mask(n)
    repaired = buildable.reduced(~members)
    proofs = [_proof(one, structure, buildable, repaired) for one in sorted(structure.members)]
    return Plan(
        proofs=tuple(proof for proof in proofs if proof is not None),
        repaired=repaired if buildable.likely(repaired) else None,
    )


def proven(plan: Plan, fit: Fit, measured: Measurements, *, margin: float, z: float) -> set[int]:
    """The settings whose proof holds: a step that is material, of an effect that is no jitter."""
    guilty = set()
    for proof in plan.proofs:
        if not (measured.complete(proof.included) and measured.complete(proof.without)):
            continue
        step = measured.mean(proof.included) - measured.mean(proof.without)
        certainty = max(
            abs(float(effect)) / float(error)
            for component, effect, error in zip(
                fit.structure.components, fit.effects, fit.errors, strict=True
            )
            if proof.setting in component.members
        )
        if abs(step) >= _STEP * margin and certainty >= z:
            guilty.add(proof.setting)
    return guilty


def _proof(one: int, structure: Structure, buildable: Buildable, repaired: Mask) -> Proof | None:
    n = repaired.size
    only = np.zeros(n, dtype=np.bool_)
    only[one] = True
    alone = only.copy()
    for component in structure.components:
        if component.kind == "together" and one in component.members:
            alone[list(component.members)] = True
            break
    contexts = [alone, buildable.completed(alone), repaired | alone, np.ones(n, dtype=np.bool_)]
    for included in contexts:
        without = included & ~only
        if buildable.likely(included, without):
            return Proof(setting=one, without=without, included=included)
    return None
