"""The search: measure what tells most, until who is guilty can be proven.

All that was measured is one set of rows. Bayes' rule weighs the few components that may explain
them; the next measurement is the one that tells most about them for its cost, whatever its settings
and however few its documents. When one answer is probable enough, it is proven on all documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evalguard.bisect.belief import Belief, belief_of
from evalguard.bisect.buildable import Buildable
from evalguard.bisect.choice import next_measurement
from evalguard.bisect.components import MOST_IN_THREES, components_of
from evalguard.bisect.effort import Effort
from evalguard.bisect.events import Accepted, Cleared, Expected, Listener
from evalguard.bisect.fit import Fit, fitted
from evalguard.bisect.measurement import Measurements
from evalguard.bisect.oracle import Mask
from evalguard.bisect.posterior import Posterior
from evalguard.bisect.result import Status
from evalguard.bisect.structure import NOTHING
from evalguard.bisect.verification import Plan, plan_for, proven

_INNOCENT = 0.01  # a setting that is guilty with less is cleared
_NATS = 1.5  # that a full evaluation tells, about: for the expected cost
_CLUELESS = 1e-3  # nats a full evaluation: nothing more can be learnt
_FIRST = 0.25  # share of the documents that a doubtful answer is first verified on


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The most probable answer, what proves it, and who is proven so far."""

    belief: Belief
    plan: Plan
    fit: Fit
    proven: frozenset[int]
    missing: list[Mask] = field(repr=False)


class Search:
    """One search over settings; ``run`` ends it with a status, or an exception from outside."""

    def __init__(
        self,
        measured: Measurements,
        buildable: Buildable,
        *,
        margin: float,
        effort: Effort,
        rng: np.random.Generator,
        listen: Listener,
    ) -> None:
        self.measured = measured
        self.status: Status = "stopped"
        self._buildable, self._margin, self._effort = buildable, margin, effort
        self._rng, self._listen = rng, listen
        self._n = len(measured.settings)
        self._cleared: set[int] = set()
        self._accepted: set[int] = set()
        self._inclusion = np.zeros(self._n)
        self.consider()

    def run(self) -> None:
        """Measure until there is an answer, or none is to be had."""
        while True:
            status = self._ended()
            if status is None:
                status = self._advance()
            if status is not None:
                self.status = status
                return

    def consider(self) -> None:
        """Form the belief that the rows support, and what would prove it."""
        rows = self.measured.rows()
        suspects = np.argsort(-self._inclusion, kind="stable")[:MOST_IN_THREES]
        self.posterior = Posterior(
            rows,
            components_of(self._n, tuple(sorted(int(one) for one in suspects))),
            margin=self._margin,
            total=self.measured.total,
        )
        belief = belief_of(self.posterior, margin=self._margin, n=self._n)
        self._inclusion = belief.inclusion
        plan = plan_for(belief.structure, self._buildable, self.measured)
        fit = fitted(belief.structure, rows.finished(), margin=self._margin)
        certain = fitted(belief.structure, rows, margin=self._margin)
        guilty = proven(plan, certain, self.measured, margin=self._margin, z=self._effort.z)
        self.case = Case(
            belief=belief,
            plan=plan,
            fit=fit,
            proven=frozenset(guilty),
            missing=plan.missing(self.measured),
        )

    def _advance(self) -> Status | None:
        """Measure once; a status if there is nothing to measure."""
        self._tell()
        if self.measured.spent > self._effort.most:
            return self._given_up()
        case = self.case
        probable = case.belief.probability >= self._effort.verify
        if probable and case.belief.structure.components and case.missing:
            self._verify(case)
        else:
            draws = self.posterior.draw(self._effort.draws, self._rng)
            choice = next_measurement(self.measured, draws, self._buildable, self._rng)
            if choice is None or choice.rate < _CLUELESS:
                return self._given_up()
            self.measured.measure(choice.mask, choice.share)
        self.consider()
        return None

    def _verify(self, case: Case) -> None:
        """Measure what is missing: a doubtful answer bit by bit, another at once."""
        if case.belief.probability >= self._effort.certain:
            self.measured.measure_all(case.missing, 1.0)
            return
        mask = case.missing[0]
        first = self.measured.cost(mask, _FIRST) > 0.0  # else no block ends before it
        self.measured.measure(mask, _FIRST if first else 1.0)

    def _ended(self) -> Status | None:
        """What the answer is, if it is one."""
        structure, sure = self.case.belief.structure, self.case.belief.probability
        if structure.diffuse and (self.measured.spent < self._effort.least or not self._spread()):
            return None
        if structure == NOTHING:
            return self._given_up() if sure >= self._effort.nothing else None
        if not structure.components:
            return "diffuse"
        guilty = self.case.proven == structure.members
        if sure < self._effort.accept or self.case.missing or not guilty:
            return None
        return "diffuse" if structure.diffuse else self._proven_status(sure)

    def _proven_status(self, sure: float) -> Status | None:
        """The status where all members are proven, by what is left without them."""
        repaired = self.case.plan.repaired
        if repaired is None or self.measured.mean(repaired) > self._margin:
            return "unexplained" if sure >= self._effort.certain else None
        effects = self.case.fit.effects
        return "masked" if effects.min() < 0.0 < effects.max() else "minimal"

    def _given_up(self) -> Status:
        """The status where nothing more is to be learnt, or to be spent."""
        structure = self.case.belief.structure
        if structure.diffuse and not structure.components and self._spread():
            return "diffuse"
        if structure == NOTHING and abs(self.measured.total) <= self._margin:
            return "not_reproduced"
        proven = not self.case.missing and self.case.proven == structure.members
        if structure.components and proven and not structure.diffuse:
            return self._proven_status(1.0) or "unexplained"
        return "unexplained"

    def _spread(self) -> bool:
        """Whether drift is spread over all settings, and none does the margin's worth by itself."""
        belief = self.case.belief
        if belief.diffuse < self._effort.diffuse or belief.probability < self._effort.verify:
            return False
        parts = [self.posterior.part(one) for one in np.eye(self._n)]
        members = self.case.belief.structure.members
        return all(
            abs(sigma) + error < self._margin
            for one, (sigma, error) in enumerate(parts)
            if one not in members
        )

    def _tell(self) -> None:
        names, belief = self.measured.settings, self.case.belief
        cleared = {int(one) for one in np.flatnonzero(belief.inclusion < _INNOCENT)}
        if cleared - self._cleared and len(self.measured.probes):
            fresh = sorted(cleared - self._cleared)
            self._listen(Cleared(settings=tuple(names[one] for one in fresh)))
            self._cleared |= cleared
        for one in sorted(self.case.proven - self._accepted):
            sigma = self.measured.yardstick.reported(self._sigma(one))
            self._listen(Accepted(setting=names[one], sigma=sigma))
            self._accepted.add(one)
        proof = sum(self.measured.cost(mask, 1.0) for mask in self.case.missing)
        suspects = [int(one) for one in np.argsort(-belief.inclusion, kind="stable")]
        self._listen(
            Expected(
                remaining=belief.entropy / _NATS + proof,
                suspects=tuple(names[one] for one in suspects if belief.inclusion[one] >= 0.1),
            )
        )

    def _sigma(self, one: int) -> float:
        fit = self.case.fit
        return max(
            (
                float(effect)
                for component, effect in zip(fit.structure.components, fit.effects, strict=True)
                if one in component.members
            ),
            key=abs,
        )
