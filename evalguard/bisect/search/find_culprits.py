"""The entrance of the search: find who makes a drift, share it among them, and recommend.

Innocent settings keep their candidate value. Each culprit takes the first of its alternatives
with which the gate passes, the others standing at what was chosen for them so far, else its
reference value. What is recommended has been measured on all documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from math import factorial, isfinite, log, log2, nan

import numpy as np

from evalguard.bisect.search.belief import Fit
from evalguard.bisect.search.block_estimates import FEWEST, deviations
from evalguard.bisect.search.buildable import Buildable
from evalguard.bisect.search.components import Component
from evalguard.bisect.search.culprit_search import CulpritSearch
from evalguard.bisect.search.measurements import Measurements, OutOfBudget
from evalguard.bisect.search.proof import effort_for
from evalguard.bisect.search.search_result import (
    LAUNCH,
    BisectResult,
    Culprit,
    Event,
    Listener,
    Outcome,
    Part,
    Suspect,
    Unit,
    Yardstick,
)
from evalguard.core.question import (
    BlockOracle,
    Floats,
    Indices,
    Mask,
    Oracle,
    Untestable,
    ValueOracle,
    check_reply,
)
from evalguard.core.settings import Constraint, Value
from evalguard.errors import UsageError

_SIDES = ("candidate", "reference")


def find_culprits(
    oracle: Oracle,
    settings: Sequence[str],
    *,
    margin: float,
    yardstick: float,
    seed: int,
    budget: float | None = None,
    constraints: Sequence[Constraint] = (),
    thorough: bool = False,
    on_event: Listener | None = None,
    unit: Unit | None = None,
    level: float | None = 0.025,
    counted: bool = False,
    document_costs: tuple[Floats, Floats] | None = None,
    base_scores: Floats | None = None,
    prior: Mapping[str, float] | None = None,
) -> BisectResult:
    """Name the settings that make the drift between base and candidate, and prove it.

    The same arguments and the same answers of the oracle give the same result.

    Args:
        oracle: scores documents under an assignment; see ``Oracle``, and ``BlockOracle`` and
            ``ParallelOracle`` for what it may offer.
        settings: names of the settings that differ between base and candidate.
        margin: drift that is tolerated, in units of ``yardstick``.
        yardstick: the base's standard error, in units of the scores; drift is
            mean(base - candidate) / yardstick.
        seed: of all random choices.
        budget: full evaluations that may be spent, base and candidate excepted; None: no limit
            but the search's own.
        constraints: assignments that cannot be built, and are not tried; their values are
            "candidate" and "reference". Base and candidate are taken to be buildable.
        thorough: be surer, and spend more; for effects of 2 to 4 standard errors of the jitter.
        on_event: called with every event, in order.
        unit: from mean drift in yardsticks to what is reported, monotone; None: as it is.
        level: one-sided level of the gate's, at which a culprit needs a paired test of its own
            (Holm over the settings), because other documents might not show the drift. None of a
            limit on how far answers or distributions are from the base's: it is about these
            documents.
        counted: documents change or do not, as figures of answers that are written greedily: a
            culprit is held to ``level`` by closed testing in place of Holm's correction
            (``counted_p_values``), and what so few documents show that nobody could be named is
            not searched for long.
        document_costs: what each document costs under the base and under the candidate, (n,) each,
            in any unit (tokens); a text that loops costs many times one that ends. None: all alike.
            What is measured next follows from it; budget and ``cost`` are in documents.
        base_scores: of the base, shape (n,), where the model with every setting at reference need
            not be it. What lies between the two uses up the margin: the settings may do the rest.
        prior: setting -> how likely it is to be a culprit beside the others (a trace's ratio);
            1 where it is not named. It decides what is measured first, and so the cost; what
            names a culprit, and what clears a setting, is the same evidence as without it.

    Raises:
        UsageError: for arguments that make no sense, or fewer than 8 documents.
        Untestable: base or candidate themselves cannot be measured.
    """
    names = tuple(settings)
    _check(names, margin, yardstick, budget, constraints)
    if oracle.n_documents < FEWEST:
        raise UsageError(
            f"a search needs {FEWEST} documents or more to see how far they scatter, "
            f"got {oracle.n_documents}"
        )
    rng = np.random.default_rng(seed)
    listen = on_event or _silent
    buildable = Buildable(names, constraints)
    try:
        measured = Measurements(
            oracle,
            names,
            yardstick=Yardstick(size=yardstick, unit=unit),
            budget=budget,
            buildable=buildable,
            rng=rng,
            listen=listen,
            counted=counted,
            document_costs=document_costs,
        )
    except KeyboardInterrupt:
        return BisectResult(status="stopped", drift_sigma=nan, unexplained_sigma=nan)
    if base_scores is not None:
        outside = float(np.mean(base_scores) - measured.base_mean) / yardstick
        margin = remaining_margin(margin, outside)
    effort = effort_for(len(names), documents=oracle.n_documents, thorough=thorough)
    search = CulpritSearch(
        measured,
        buildable,
        margin=margin,
        effort=effort,
        rng=rng,
        listen=listen,
        level=level,
        counted=counted,
        weights=prior_weights(names, prior),
    )
    if measured.unmoved:  # what single settings do is undone by others: nobody is to blame
        search.status = "not_reproduced"
        return conclude_search(search)
    with suppress(KeyboardInterrupt, OutOfBudget):  # "stopped" until it ends by itself
        search.run()
    return conclude_search(search)


_MOST_WEIGHT = 30.0  # a trace may be a thousand times beyond its floor, and yet cost nothing


def prior_weights(
    names: tuple[str, ...], prior: Mapping[str, float] | None
) -> tuple[float, ...] | None:
    """Weights of the settings, one each; None where nothing is known of any.

    Where the largest is beyond what is believed, all are drawn nearer to 1 on a log scale: their
    order stays.
    """
    if not prior:
        return None
    weights = np.array([float(prior.get(name, 1.0)) for name in names])
    if not np.all(weights > 0.0):  # NaN too
        raise UsageError(f"a prior is above 0 for every setting, got {dict(prior)}")
    logs, most = np.log(weights), log(_MOST_WEIGHT)
    finite = logs[np.isfinite(logs)]
    logs = np.minimum(logs, max(float(finite.max(initial=most)), most))
    logs *= min(1.0, most / max(float(np.abs(logs).max()), most))
    return None if np.all(logs == logs[0]) else tuple(np.exp(logs).tolist())


_LEAST_MARGIN = 0.25  # of the margin: what is left of it to be searched for


def remaining_margin(margin: float, outside: float) -> float:
    """What settings may do together where the drift outside them counts too.

    Args:
        outside: drift of the model with every setting at reference, in the unit of ``margin``. If
            it is beyond the margin, no setting can bring the candidate inside it, and if it is
            below 0, what it hides is not to be held against the settings: then all is left.
    """
    if not 0.0 < outside < margin:
        return margin
    return max(margin - outside, _LEAST_MARGIN * margin)


def _silent(event: Event) -> None:
    """Listen to nothing."""


def _check(
    names: tuple[str, ...],
    margin: float,
    yardstick: float,
    budget: float | None,
    constraints: Sequence[Constraint],
) -> None:
    if not names or len(set(names)) < len(names):
        raise UsageError(f"a search needs settings with different names, got {list(names)}")
    for what, value in (("margin", margin), ("yardstick", yardstick)):
        if not (isfinite(value) and value > 0.0):
            raise UsageError(f"the {what} of a search must be above 0, got {value}")
    if budget is not None and not budget >= 0.0:
        raise UsageError(f"the budget of a search is in full evaluations, got {budget}")
    for rule in constraints:
        for name, side in (*rule.when.items(), *rule.then.items()):
            if name not in names or side not in _SIDES:
                raise UsageError(
                    f"a constraint of a search names {name}: {side!r}",
                    hint=f"settings: {', '.join(names)}; values: candidate, reference",
                )


def expected_evaluations(settings: int, culprits: int) -> float:
    """Full evaluations for so many additive culprits among so many settings.

    1 + k (1 + 0.4 log2 n), base and candidate not counted: what the search keeps below on average
    for effects of 5 standard errors of the jitter or more (benchmarks/bisect_simulation.py). A
    single setting needs nothing but its own measurement, which is the candidate's.
    """
    return 1.0 + culprits * (1.0 + 0.4 * log2(settings)) if settings > 1 else 0.0


_SUSPECTED = 0.1  # probability from which on a setting is listed
_PARTS = 4


def conclude_search(search: CulpritSearch) -> BisectResult:
    """Say what is proven, what is only suspected, and what is left."""
    measured, case = search.measured, search.case
    names, reported = measured.settings, measured.yardstick.reported
    culprits = culprits_of(case.fit, case.proven, measured)
    likely = np.argsort(-case.belief.inclusion, kind="stable")
    suspects = [
        Suspect(
            name=names[index],
            probability=float(min(case.belief.inclusion[index], 1.0)),
            p_value=case.p_values.get(int(index)),
        )
        for index in likely
        if case.belief.inclusion[index] >= _SUSPECTED and index not in case.proven | measured.joined
    ]
    repaired = case.plan.repaired
    inert = measured.inert() & ~_accused(names, case.proven | measured.joined, suspects)
    return BisectResult(
        status=search.status,
        culprits=culprits,
        drift_sigma=reported(measured.total),
        unexplained_sigma=reported(_remaining_cost(search)),
        suspects=tuple(suspects),
        parts=_parts(search) if search.status == "diffuse" else (),
        repaired=() if repaired is None or not culprits else _names(names, repaired),
        eliminated=bool(culprits) and repaired is not None and measured.as_base(repaired),
        inert=_names(names, inert),
        probes=tuple(measured.probes),
        cost=measured.spent,
    )


def _remaining_cost(search: CulpritSearch) -> float:
    """Drift with the culprits at reference: as measured, else what their effects leave."""
    case, measured = search.case, search.measured
    everybody = case.proven == case.belief.structure.members
    repaired = case.plan.repaired
    if everybody and repaired is not None and measured.complete(repaired):
        return measured.mean(repaired)
    effects = [
        float(effect)
        for component, effect in zip(case.fit.structure.components, case.fit.effects, strict=True)
        if case.proven & set(component.members)
    ]
    return measured.total - sum(effects)


def _names(names: tuple[str, ...], mask: Mask) -> tuple[str, ...]:
    return tuple(name for name, inside in zip(names, mask, strict=True) if inside)


def _accused(names: tuple[str, ...], proven: Set[int], suspects: Sequence[Suspect]) -> Mask:
    """Who is guilty, suspected, or undone by others: what changes nothing with a partner, or
    without it, is not without effect."""
    suspected = {suspect.name for suspect in suspects}
    return np.array([i in proven or name in suspected for i, name in enumerate(names)])


def _parts(search: CulpritSearch) -> tuple[Part, ...]:
    """Neighbouring settings as they were declared, in up to four groups, and what each does."""
    measured = search.measured
    names = measured.settings
    parts = []
    for group in np.array_split(np.arange(len(names)), min(_PARTS, len(names))):
        inside = np.zeros(len(names))
        inside[group] = 1.0
        sigma, error = measured.yardstick.reported_with_error(*search.posterior.part(inside))
        settings = tuple(names[index] for index in group)
        parts.append(Part(settings=settings, sigma=sigma, error_sigma=error))
    return tuple(parts)


_ENOUGH = 0.25 - 1e-2  # share of the documents that says what a setting does alone


def culprits_of(fit: Fit, proven: frozenset[int], measured: Measurements) -> tuple[Culprit, ...]:
    """Name the proven members of a fitted structure, the largest share first."""
    named = [_culprit(fit, index, measured) for index in sorted(proven)]
    return tuple(sorted(named, key=lambda culprit: -abs(culprit.shapley_sigma)))


def _culprit(fit: Fit, one: int, measured: Measurements) -> Culprit:
    yardstick = measured.yardstick
    members = sorted(fit.structure.members)
    rest = [member for member in members if member != one]
    largest = fit.of(one)[0]
    _, error = yardstick.reported_with_error(
        float(fit.effects[largest]), float(fit.errors[largest])
    )
    alone = _alone(one, measured)
    component = _telling_component(fit, one)
    partners = [measured.settings[member] for member in component.members if member != one]
    return Culprit(
        name=measured.settings[one],
        sigma_alone=None if alone is None else alone[0],
        alone_error_sigma=None if alone is None else alone[1],
        alone_share=0.0 if alone is None else alone[2],
        sigma_in_context=_value(fit, members, yardstick) - _value(fit, rest, yardstick),
        shapley_sigma=_shapley(fit, one, rest, yardstick),
        error_sigma=error,
        role=component.kind,
        partners=tuple(partners),
    )


def _telling_component(fit: Fit, one: int) -> Component:
    """Of the largest effect; of those that need a partner only where there are no others."""
    components = [fit.structure.components[at] for at in fit.of(one)]
    return next((c for c in components if c.acts_alone), components[0])


def _alone(one: int, measured: Measurements) -> tuple[float, float, float] | None:
    """Drift with one setting alone, its standard error, as reported, and on which share."""
    rows = measured.rows()
    mask = np.arange(len(measured.settings)) == one
    at = np.flatnonzero((rows.masks == mask).all(axis=1) & (rows.share >= _ENOUGH))
    if not at.size:
        return None
    error = float(np.sqrt(rows.variance[at[0]]))
    sigma, error = measured.yardstick.reported_with_error(float(rows.sigma[at[0]]), error)
    return sigma, error, float(rows.share[at[0]])


def _value(fit: Fit, members: Iterable[int], yardstick: Yardstick) -> float:
    """Drift of the culprits ``members`` by the fit, as reported."""
    inside = set(members)
    drift = 0.0
    for component, effect in zip(fit.structure.components, fit.effects, strict=True):
        hits = [member in inside for member in component.members]
        acts = any(hits) if component.kind == "redundant" else all(hits)
        drift += float(effect) * acts
    return yardstick.reported(drift)


def _shapley(fit: Fit, one: int, rest: list[int], yardstick: Yardstick) -> float:
    """Shapley value: the mean of what ``one`` adds, over all orders (Shapley, 1953)."""
    n = len(rest) + 1
    share = 0.0
    for size in range(n):
        weight = factorial(size) * factorial(n - size - 1) / factorial(n)
        for before in combinations(rest, size):
            added = _value(fit, (*before, one), yardstick) - _value(fit, before, yardstick)
            share += weight * added
    return share


_GLANCE = 4  # a quarter of the documents is asked first
_ENOUGH_MEASURED = 64  # documents that may show an alternative to be too bad
_CLEARLY = 4.0  # standard errors beyond the margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An assignment that was tried.

    Attributes:
        values: of the culprits; all other settings had their candidate value.
        documents: how many were scored.
        drift_sigma: over those, as reported; NaN if they were not scored.
        passed: whether the gate passes, on all documents.
        outcome: scored, or why not.
        untestable: the same in words; empty if scored.
        cost: in full evaluations.
    """

    values: Mapping[str, Value]
    documents: int
    drift_sigma: float
    passed: bool
    outcome: Outcome
    untestable: str
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Values of the culprits with which the gate passes, and everything that was tried."""

    values: Mapping[str, Value]
    drift_sigma: float
    trials: tuple[Trial, ...]

    @property
    def cost(self) -> float:
        """Of all trials, in full evaluations."""
        return sum(trial.cost for trial in self.trials)


def recommend(
    oracle: ValueOracle,
    culprits: Sequence[str],
    alternatives: Mapping[str, Sequence[Value]],
    *,
    references: Mapping[str, Value],
    margin: float,
    yardstick: float,
    unit: Unit | None = None,
    budget: float | None = None,
) -> Recommendation | None:
    """Find values of the culprits that pass the gate; None if none was shown to.

    Args:
        oracle: measures values, and the base's scores as ``measure(frozenset(), ...)``.
        culprits: names, the costliest first; of those the first chooses first.
        alternatives: of each culprit, in order of preference; may be missing.
        references: the reference value of each culprit.
        margin: drift that is tolerated, in units of ``yardstick``.
        yardstick: the base's standard error, in units of the scores.
        unit: see ``find_culprits``.
        budget: full evaluations that may be spent; when they are, the best so far is returned.
    """
    bench = _Bench(oracle, margin, Yardstick(size=yardstick, unit=unit), budget)
    chosen: dict[str, Value] = {name: references[name] for name in culprits}
    verified: Trial | None = None
    try:
        for name in culprits:
            for value in alternatives.get(name, ()):
                trial = bench.trial({**chosen, name: value})
                if trial.passed:
                    chosen[name], verified = value, trial
                    break
        if verified is None:
            last = bench.trial(chosen)
            verified = last if last.passed else None
    except (KeyboardInterrupt, OutOfBudget):
        pass  # what is verified so far stands
    if verified is None:
        return None
    return Recommendation(
        values=verified.values, drift_sigma=verified.drift_sigma, trials=tuple(bench.trials)
    )


class _Bench:
    """Tries assignments, and keeps what came out."""

    def __init__(
        self, oracle: ValueOracle, margin: float, yardstick: Yardstick, budget: float | None
    ) -> None:
        self.trials: list[Trial] = []
        self._oracle, self._margin, self._yardstick = oracle, margin, yardstick
        self._left = np.inf if budget is None else budget
        self._first, self._rest = _parts_of(oracle)
        everything = np.arange(oracle.n_documents)
        self._base = np.asarray(oracle.measure(frozenset(), everything), dtype=np.float64)

    def trial(self, values: Mapping[str, Value]) -> Trial:
        """Try an assignment; on part of the documents only, where that shows it to be too bad."""
        n = self._base.size
        if self._left < 1.0 + LAUNCH:
            raise OutOfBudget
        drift: Floats = np.empty(0)
        refusal: Untestable | None = None
        try:
            for documents in (self._first, self._rest):
                if documents.size and not self._hopeless(drift):
                    scores = check_reply(self._oracle.measure_values(values, documents))
                    if isinstance(scores, Untestable):
                        raise scores
                    drift = np.concatenate([drift, self._base[documents] - scores])
        except Untestable as error:
            refusal = error
        sigma = float(np.mean(drift)) / self._yardstick.size if drift.size else np.nan
        trial = Trial(
            values=dict(values),
            documents=drift.size,
            drift_sigma=self._yardstick.reported(sigma) if refusal is None else np.nan,
            passed=refusal is None and drift.size == n and sigma <= self._margin,
            outcome="scored" if refusal is None else refusal.kind,
            untestable="" if refusal is None else refusal.reason,
            cost=LAUNCH + drift.size / n,
        )
        self.trials.append(trial)
        self._left -= trial.cost
        return trial

    def _hopeless(self, drift: Floats) -> bool:
        if drift.size < _ENOUGH_MEASURED:
            return False
        error = float(np.std(drift, ddof=1)) / np.sqrt(drift.size)
        beyond = float(np.mean(drift)) - self._margin * self._yardstick.size
        return bool(beyond > deviations(_CLEARLY, drift.size) * error)


def _parts_of(oracle: ValueOracle) -> tuple[Indices, Indices]:
    """The documents that are asked first, and the others; whole blocks where there are any."""
    n = oracle.n_documents
    if not isinstance(oracle, BlockOracle):
        return np.arange(0, n, _GLANCE), np.setdiff1d(np.arange(n), np.arange(0, n, _GLANCE))
    blocks = [np.asarray(block, dtype=np.intp) for block in oracle.blocks]
    first = blocks[::_GLANCE]
    rest = [block for at, block in enumerate(blocks) if at % _GLANCE]
    return np.concatenate(first), np.concatenate([*rest, np.empty(0, dtype=np.intp)])
