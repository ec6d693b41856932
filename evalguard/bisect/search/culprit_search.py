"""The search: measure what tells most, until who is guilty can be proven.

All that was measured is one set of rows. Bayes' rule weighs the few components that may explain
them; the next measurement is the one that tells most about them for its cost, whatever its
settings and however few its documents. When one answer is probable enough, it is proven on all
documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evalguard.bisect.search.belief import Belief, Draws, Fit, Posterior, belief_of, fit_effects
from evalguard.bisect.search.buildable import LIKELY_FAILS, Buildable
from evalguard.bisect.search.components import MOST_IN_THREES, NOTHING, Structure, components_of
from evalguard.bisect.search.measurements import Measurements, OutOfBudget, Rows
from evalguard.bisect.search.proof import (
    FIRST,
    STEP,
    Case,
    Effort,
    Plan,
    can_be_named,
    counted_p_values,
    drowned,
    own_p_values,
    plan_for,
    proven,
    real,
)
from evalguard.bisect.search.search_result import (
    LAUNCH,
    Accepted,
    Cleared,
    Expected,
    Listener,
    Status,
)
from evalguard.core.question import Floats, Mask

_RANDOM = 64  # random assignments proposed
_FINALISTS = 12
_FIRST_LOOK = 1 / 8  # share of the documents at which finalists are chosen
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
    glance = _information(predictions[::2], noise, (_FIRST_LOOK,))[0]
    finalists = np.argsort(-glance * (1.0 - risks), kind="stable")[:_FINALISTS]
    information = _information(predictions[:, finalists], noise, _SHARES)
    best: Choice | None = None
    for column, at in enumerate(finalists):
        mask, risk = masks[at], float(risks[at])
        done = measured.measured(mask)
        known = float(np.interp(done, (0.0, *_SHARES), (0.0, *information[:, column])))
        total = measured.total
        drifting = float(np.clip(np.mean(predictions[:, at]) / total, 0.0, 1.0)) if total else 0.0
        wanted = _SAVED * _needed(mask, members, partners)
        for share, all_told in zip(_SHARES, information[:, column].tolist(), strict=True):
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
    information = []
    for share, longer in zip(shares, (*shares[1:], shares[-1]), strict=True):
        with np.errstate(invalid="ignore"):  # a BLAS may say so of numbers that all are finite
            information.append(-(np.log(near @ weights) @ weights))
        near = near ** (longer / share) if longer / share != 2.0 else near * near
    return np.array(information, dtype=np.float64)


_INNOCENT = 0.01  # a setting that is guilty with less is cleared
_SUSPECTED = 0.1  # ... and one that is with more is suspected
_NATS = 1.5  # that a full evaluation tells, about: for the expected cost


class Progress:
    """Tells who is cleared and who is accepted, each once, and what the rest will cost."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._cleared: set[int] = set()
        self._accepted: set[int] = set()

    def tell(self, case: Case, measured: Measurements) -> None:
        """Tell what is new, and what is expected."""
        names, inclusion = measured.settings, case.belief.inclusion
        cleared = {int(index) for index in np.flatnonzero(inclusion < _INNOCENT)}
        if cleared - self._cleared and measured.probes:
            fresh = sorted(cleared - self._cleared)
            self._listen(Cleared(settings=tuple(names[index] for index in fresh)))
            self._cleared |= cleared
        self.accept(case, measured)
        proof = sum(measured.cost(mask, 1.0) for mask in case.missing)
        likely = [int(index) for index in np.argsort(-inclusion, kind="stable")]
        self._listen(
            Expected(
                remaining=case.belief.entropy / _NATS + proof,
                suspects=tuple(names[index] for index in likely if inclusion[index] >= _SUSPECTED),
            )
        )

    def accept(self, case: Case, measured: Measurements) -> None:
        """Tell who is proven since it was last told."""
        for index in sorted(case.proven - self._accepted):
            sigma = measured.yardstick.reported(case.fit.largest(index))
            self._listen(Accepted(setting=measured.settings[index], sigma=sigma))
            self._accepted.add(index)


_LIKELY = 0.5  # a setting that is less probably guilty is not named
_CLUELESS = 1e-3  # nats a full evaluation: nothing more can be learnt
_PROBABLY_NOTHING = 0.95
_STEPS = (FIRST, 0.5, 1.0)  # in which a single culprit is measured alone
_ALONE = 2.5  # standard errors that it must drift there
_CLOSER = 0.75  # of the margin: what counts, where more than the margin is left
_FAR = 8.0  # standard errors of the jitter: a drift that far above it is not near to chance
_SUSPECTING = 3.0  # full evaluations that a suspicion is worth which cannot become more
_GLANCE = 1 / 16  # of the documents: whether a change cancels shows on each of them
_MOST_GUILTY = 2  # beside what cancels
_BEYOND = 1.5  # times the candidate's drift: what does more alone is undone in it
_CLEAR = 3.0  # margins: what each of settings does alone that undo each other
_MOST_ALONE = 40  # settings that are looked at one by one, where one is missing to undo others
_PART = 0.1  # of what the least of them does alone: what few documents may show of all together
_JITTERS = 2.5  # standard errors of the jitter by which their drift together may be off
_JITTER_PART = 0.25  # of what the least of them does alone: what these may be at most
_HOPEFUL = 0.05  # p-value: what is further from the gate's level, no average brings below it
_SLACK = 0.01  # of the documents, by which blocks may miss a share


class CulpritSearch:
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
        level: float | None = 0.025,
        counted: bool = False,
        weights: tuple[float, ...] | None = None,
    ) -> None:
        """Begin.

        Args:
            level, counted: as of ``find_culprits``.
            weights: (n,), how likely each setting is to be a culprit beside the others, by what is
                known without a measurement. They decide what is measured next, and nothing else.
        """
        self.measured = measured
        self._level = level
        self._counted = counted and level is not None and measured.counts_flips
        self.status: Status = "stopped"
        self._buildable, self._margin, self._effort = buildable, margin, effort
        self._rng, self._progress = rng, Progress(listen)
        self._n, self._weights = len(measured.settings), weights
        self._inclusion = np.zeros(self._n)
        self.consider()

    def run(self) -> None:
        """Measure until there is an answer, or none is to be had."""
        while True:
            status = self._final_status()
            if status is None:
                status = self._advance()
            further = status == "unexplained" and (self._eliminates() or self._averages_jitter())
            if further or (status is not None and self._joins()):
                self.consider()
            elif status is not None:
                self.status = status
                self._progress.accept(self.case, self.measured)
                return

    def consider(self) -> None:
        """Form the belief that the rows support, and what would prove it."""
        rows = self.measured.rows()
        drifting = self._drifting(rows)
        self.posterior = self._posterior(rows)
        belief = belief_of(self.posterior, margin=self._margin, n=self._n)
        everything, plan = self._planned(belief, rows, drifting)
        if self._remaining_cost(plan) > self._margin:  # what was left out as small is not
            closer = belief_of(self.posterior, margin=_CLOSER * self._margin, n=self._n)
            if closer.structure.members > belief.structure.members:
                belief = closer
                everything, plan = self._planned(belief, rows, drifting)
        self._inclusion = belief.inclusion
        fit = fit_effects(belief.structure, rows.finished(), margin=self._margin)
        guilty = proven(
            plan,
            everything,
            self.measured,
            margin=self._margin,
            z=self._effort.z,
            counted=self._counted,
        )
        guilty = {member for member in guilty if belief.inclusion[member] >= _LIKELY}
        evident = frozenset(guilty)
        if self._counted:
            p_values = counted_p_values(plan, self.measured)
            evident = frozenset(
                member for member, p in p_values.items() if p <= (self._level or 0.0)
            )
        else:
            p_values = own_p_values(plan, fit, self.measured)
            if self._level is not None:
                evident = real(p_values, self.measured, level=self._level)
        unseen = plan.unseen(self.measured)
        self.case = Case(
            belief=belief,
            plan=plan,
            fit=fit,
            proven=frozenset(guilty & evident),
            missing=plan.missing(self.measured),
            unseen=() if belief.probability >= self._effort.certain else unseen,
            p_values=p_values,
            by_chance=frozenset(guilty - evident),
        )

    def _planned(self, belief: Belief, rows: Rows, drifting: tuple[int, ...]) -> tuple[Fit, Plan]:
        """The effects by all that was measured, and what would prove them."""
        everything = fit_effects(belief.structure, rows, margin=self._margin)
        clear = frozenset(
            member
            for member in belief.structure.members.intersection(drifting)
            if everything.certainty(member) >= self._effort.clear
        )
        if self._counted:  # the same documents once more tell no more, and cost most
            clear = belief.structure.members.intersection(drifting)
        plan = plan_for(belief.structure, self._buildable, self.measured, clear=clear)
        return everything, plan

    def _remaining_cost(self, plan: Plan) -> float:
        """Drift of the repaired candidate; 0 if it is not known."""
        if plan.repaired is None or not self.measured.complete(plan.repaired):
            return 0.0
        return self.measured.mean(plan.repaired)

    def _drifting(self, rows: Rows) -> tuple[int, ...]:
        """The settings that drift alone, as far as that is measured."""
        needed = np.maximum(_ALONE * np.sqrt(rows.variance), STEP * self._margin)
        measured = (rows.masks.sum(axis=1) == 1) & (rows.share >= FIRST - _SLACK)
        if self._counted:
            measured = rows.masks.sum(axis=1) == 1
        drifts = measured & (np.abs(rows.sigma) >= needed)
        return tuple(np.flatnonzero(rows.masks[drifts].any(axis=0)).tolist())

    def _advance(self) -> Status | None:
        """Measure once; a status if there is nothing to measure."""
        self._progress.tell(self.case, self.measured)
        if self._joins_undone():
            self.consider()
            return None
        if self.measured.spent > self._most() or self._points_at_nobody():
            return self._given_up()
        case, asked = self.case, len(self.measured.probes)
        probable = case.belief.probability >= self._effort.verify
        if probable and case.belief.structure.components and case.open:
            if self._joins():
                self.consider()
                return None
            self._verify(case)
        else:
            choice = self._choose()
            if choice is not None and choice.rate >= self._worth():
                self.measured.measure(choice.mask, choice.share)
            elif case.belief.structure.components and case.open:
                self._verify(case)  # looks say nothing: what proves it may
            else:
                return self._given_up()
        if len(self.measured.probes) == asked:  # and so it would be next time: no endless search
            return self._given_up()
        self.consider()
        return None

    def _most(self) -> float:
        """Full evaluations that may be spent; few where so few documents change that nobody could
        be named, and the likeliest are only suspected.
        """
        everything = np.ones(self._n, dtype=np.bool_)
        if self._counted and not can_be_named(self.measured, everything, level=self._level or 0.0):
            return _SUSPECTING
        return self._effort.most

    def _choose(self) -> Choice | None:
        """What to measure next: by the weights, unless that would tell too little."""
        if self._weights is not None:
            choice = self._most_told(self._posterior(self.measured.rows(), self._weights))
            if choice is not None and choice.rate >= self._worth():
                return choice
        return self._most_told(self.posterior)

    def _most_told(self, posterior: Posterior) -> Choice | None:
        draws = posterior.draw(self._effort.draws, self._rng)
        return next_measurement(self.measured, draws, self._buildable, self._rng)

    def _posterior(self, rows: Rows, weights: tuple[float, ...] | None = None) -> Posterior:
        suspects = np.argsort(-self._inclusion, kind="stable")[:MOST_IN_THREES]
        return Posterior(
            rows,
            components_of(self._n, tuple(sorted(suspects.tolist())), self._drifting(rows), weights),
            margin=self._margin,
            total=self.measured.total,
        )

    def _joins(self) -> bool:
        """Take for one setting what only together does nothing; False if there is no such thing.

        A scale and what takes it back, rows in another order and what reads them, whatever of that
        kind stands beside faults. Looked for only where one undoes what another does.
        """
        fit = self.case.fit
        parts = fit.structure.components
        opposed = np.min(fit.effects, initial=0.0) < 0.0 < np.max(fit.effects, initial=0.0)
        if not opposed and all(component.kind != "redundant" for component in parts):
            return False
        measured, numbers = self.measured, np.arange(self._n)
        joined = np.isin(numbers, [*measured.joined])
        either = dict.fromkeys(
            component.members for component in parts if component.kind == "redundant"
        )
        together = {member for members in either for member in members}
        for members in dict.fromkeys((tuple(sorted(together)), *either)):
            mask = np.isin(numbers, members)
            if np.any(mask & ~joined) and self._undo_each_other(mask & ~joined, joined):
                measured.join(mask | joined)
                return True
        suspects = sorted({member for part in parts for member in part.members} - measured.joined)
        most = 1 if either else _MOST_GUILTY
        for count in range(min(len(suspects), most) + 1):
            for guilty in combinations(suspects, count):
                innocent = ~np.isin(numbers, guilty)
                grown = self._n - count > len(measured.joined)
                if grown and self._undone(innocent):
                    measured.join(innocent)
                    return True
        return False

    def _undo_each_other(self, mask: Mask, joined: Mask) -> bool:
        """Whether settings that drift the same way alone, each of them far, are inside the margin
        together, as far as their jitter tells: then none of them makes the candidate's drift,
        whatever jitter is on documents.
        """
        measured, margin = self.measured, self._margin
        alone = np.eye(self._n, dtype=np.bool_)[mask]
        with suppress(OutOfBudget):
            if not all(measured.measure(single, _GLANCE) for single in alone):
                return False
            drifts = np.array([measured.mean(single) for single in alone])
            least = float(np.abs(drifts).min())
            if least <= _CLEAR * margin or abs(np.sign(drifts).sum()) < drifts.size:
                return False
            whole, jitter = mask | joined, float(np.sqrt(measured.noise()))
            for share in (_GLANCE, FIRST, 1.0):
                error = _JITTERS * jitter / share**0.5
                if share < 1.0:
                    error += _PART * least
                elif error > _JITTER_PART * least:  # it could hide that they do half as much
                    error = 0.0
                if not measured.measure(whole, share):
                    return False
                if abs(measured.mean(whole)) > margin + error:
                    return False
            return True
        return False

    def _joins_undone(self) -> bool:
        """Likewise settings of which each drifts alone far beyond the candidate, however many
        faults are beside them.

        Where some of the settings do, what undoes it is among the others: all are looked at alone.
        """
        rows, least = self.measured.rows(), self._most_undone()
        clear = np.abs(rows.sigma) - _ALONE * np.sqrt(rows.variance)
        alone = np.eye(self._n, dtype=np.bool_)
        if self._n <= _MOST_ALONE and np.any(clear > least):
            with suppress(OutOfBudget):
                for single in alone:
                    self.measured.measure(single, _GLANCE)
        seen = np.array([self.measured.measured(single) > 0.0 for single in alone])
        far = seen.copy()
        far[seen] = [abs(self.measured.mean(single)) > least for single in alone[seen]]
        joined = np.isin(np.arange(self._n), [*self.measured.joined])
        if np.sum(far & ~joined) < 2 or not self._does_nothing(far, joined):
            return False
        self.measured.join(far | joined)
        return True

    def _most_undone(self) -> float:
        """Drift beyond which something undoes in the candidate what others of its settings do."""
        return _BEYOND * max(abs(self.measured.total), 2.0 * self._margin)

    def _does_nothing(self, mask: Mask, joined: Mask) -> bool:
        return self._undone(mask | joined) or self._undo_each_other(mask & ~joined, joined)

    def _undone(self, mask: Mask) -> bool:
        """Whether settings do nothing together, while a part of them does something."""
        measured = self.measured
        with suppress(OutOfBudget):  # what is proven without it stands
            for share in (_GLANCE, 1.0):
                if not measured.measure(mask, share) or not measured.undone(mask):
                    return False
            return abs(measured.mean(mask)) <= self._margin
        return False

    def _eliminates(self) -> bool:
        """Measure all but one setting, if that one alone was seen to change any score."""
        silent = self.measured.inert()
        if silent.sum() != self._n - 1 or self.measured.complete(silent):
            return False
        return self.measured.measure(silent, 1.0)

    def _averages_jitter(self) -> bool:
        """Measure one more assignment for each component that the paired test calls chance so far.

        All documents are asked, but each assignment has jitter of its own, and what a setting does
        to a document is estimated from all assignments. Not where few documents change: there the
        test counts those of one step.
        """
        case, measured = self.case, self.measured
        if measured.counts_flips or measured.spent > self._effort.most:
            return False
        hopeful = {
            member for member in case.by_chance if case.p_values.get(member, 1.0) <= _HOPEFUL
        }
        repaired = ~case.belief.structure.mask(self._n)
        masks: dict[bytes, Mask] = {}
        for component in case.belief.structure.components:
            if hopeful.intersection(component.members):
                acting = np.isin(np.arange(self._n), component.members)
                for mask in (acting, acting | repaired, ~acting):
                    if not measured.complete(mask) and self._buildable.likely(mask):
                        masks[mask.tobytes()] = mask
                        break
        with suppress(OutOfBudget):
            return bool(masks) and any(measured.measure_all([*masks.values()], 1.0))
        return False

    def _worth(self) -> float:
        """Nats that a full evaluation must promise; more where the drift is probably jitter.

        Not inside the margin: what is to be found there hides another's drift, unless that is seen
        already.
        """
        belief = self.case.belief
        nothing = belief.structure == NOTHING and belief.probability >= _PROBABLY_NOTHING
        unhidden = abs(self.measured.total) > self._margin or bool(self.measured.joined)
        jitter = nothing and unhidden
        return self._effort.worth if jitter else _CLUELESS

    def _verify(self, case: Case) -> None:
        """Measure what is missing, at once: a quarter first, of a doubtful answer.

        What is known of a quarter is measured further one after the other: it may refute the rest.
        """
        measured, missing = self.measured, case.missing
        if case.unseen:
            measured.measure_all(case.unseen, FIRST)
            return
        look = 0.0 if self._counted else FIRST  # the first of the documents that change
        first = [mask for mask in missing if measured.cost(mask, look) > 0.0]
        if case.belief.probability < self._effort.certain:
            measured.measure_all(first or missing[:1], look if first else 1.0)
        elif len(case.belief.structure.members) == 1 and missing[0].sum() == 1:
            share = next(share for share in _STEPS if measured.cost(missing[0], share) > 0.0)
            measured.measure(missing[0], share)  # it may be clear before the end
        else:
            measured.measure_all(missing, 1.0)

    def _final_status(self) -> Status | None:
        """What the answer is, if it is one."""
        structure, sure = self.case.belief.structure, self.case.belief.probability
        if len(self.measured.joined) == self._n:
            return "not_reproduced"
        if structure.diffuse and (self.measured.spent < self._effort.least or not self._spread()):
            return None
        if structure == NOTHING:
            above = abs(self.measured.total) > self._margin
            enough = self._effort.chance if above else self._effort.nothing
            return self._given_up() if sure >= enough else None
        if not structure.components:
            return "diffuse"
        if sure < self._effort.accept or self.case.open:
            return None
        if self.case.proven != structure.members:
            if self.case.proven | self.case.by_chance == structure.members:
                return "unexplained"  # all of it is measured: no more documents are to be had
            lost = not self._counted and drowned(self.case.plan, self.measured, z=self._effort.z)
            return "unexplained" if lost and sure >= self._effort.certain else None
        if sure < self._effort.certain and not self._suffices(structure):
            return None
        return "diffuse" if structure.diffuse else self._proven_status(sure)

    def _suffices(self, structure: Structure) -> bool:
        """Whether a single culprit fails the gate alone, as far as that is measured."""
        alone = structure.mask(self._n)
        if len(structure.members) > 1 or not self.measured.complete(alone):
            return True
        return abs(self.measured.mean(alone)) > self._margin

    def _proven_status(self, sure: float) -> Status | None:
        """The status where all members are proven, by what is left without them."""
        repaired = self.case.plan.repaired
        if repaired is None or self.measured.mean(repaired) > self._margin:
            return "unexplained" if sure >= self._effort.certain or self._told(repaired) else None
        signs = {self.case.fit.alone(member) > 0.0 for member in self.case.proven}
        return "masked" if len(signs) > 1 else "minimal"

    def _told(self, repaired: Mask | None) -> bool:
        """Whether nobody could be named for what is left, of documents that are counted."""
        if not self._counted or repaired is None:
            return False
        if self.measured.spent > self._effort.patience:
            return True
        return not can_be_named(self.measured, repaired, level=self._level or 0.0)

    def _given_up(self) -> Status:
        """The status where nothing more is to be learnt, or to be spent."""
        structure = self.case.belief.structure
        if structure.diffuse and not structure.components and self._spread(given_up=True):
            return "diffuse"
        if structure == NOTHING and abs(self.measured.total) <= self._margin:
            return "not_reproduced"
        proven = not self.case.open and self.case.proven == structure.members
        if structure.components and proven and not structure.diffuse:
            return self._proven_status(1.0) or "unexplained"
        return "unexplained"

    def _points_at_nobody(self) -> bool:
        """Whether the drift is so near to the jitter that more evaluations would only add to it.

        With jitter of half the margin or more, an assignment tells little of a culprit that is
        worth the margin: whoever is not suspected by then would not be proven either.
        """
        belief, effort = self.case.belief, self._effort
        spent = self.measured.spent - self.measured.spent_before_joining
        if spent < effort.patience or self.case.proven:
            return False
        jitter = float(np.sqrt(self.measured.noise()))
        jittery = 2.0 * jitter >= self._margin and abs(self.measured.total) < _FAR * jitter
        needed = effort.pointing * spent / effort.patience
        if float(belief.inclusion.sum()) <= effort.few:
            needed -= effort.leave
        return jittery and float(belief.inclusion.max()) < needed

    def _spread(self, *, given_up: bool = False) -> bool:
        """Whether drift is spread over all settings, and none does the margin's worth by itself.

        Where nothing more is measured, it is said if it is the likeliest answer.
        """
        belief, effort = self.case.belief, self._effort
        if given_up:
            if belief.diffuse < effort.spread:
                return False
        elif belief.diffuse < effort.diffuse or belief.probability < effort.verify:
            return False
        parts = [self.posterior.part(single) for single in np.eye(self._n)]
        members = self.case.belief.structure.members
        return all(
            abs(sigma) + error < self._margin
            for index, (sigma, error) in enumerate(parts)
            if index not in members
        )
