"""Who makes one metric drift, asked of one model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from evalguard.bisect.bisect_progress import BisectionProgress
from evalguard.bisect.bisect_report import (
    Ended,
    GuiltySetting,
    MetricSearch,
    UntestableAssignment,
    WrittenTexts,
)
from evalguard.bisect.oracle.probes import are_drawn, count_texts, written_by
from evalguard.bisect.oracle.settings_oracle import (
    OpenOracle,
    OracleContext,
    OracleRequest,
    SearchedLimit,
    SettingsOracle,
    StoppableOracle,
)
from evalguard.bisect.scales import FigureScale
from evalguard.bisect.search.find_culprits import (
    Recommendation,
    expected_evaluations,
    find_culprits,
    recommend,
)
from evalguard.bisect.search.search_result import BisectResult
from evalguard.bisect.settings.module_settings import weigh_settings
from evalguard.bisect.subject import Subject
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.core.document_scale import DocumentScale
from evalguard.core.question import Floats
from evalguard.core.redaction import shown_value
from evalguard.core.settings import Constraint, Setting, Value, Variant
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, Interrupted, error_text
from evalguard.page.progress import ProgressLine
from evalguard.report.metric_labels import key_label


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """One search.

    Attributes:
        subject: the metric or limit that is searched.
        candidate: whose settings are; at least one of them is not at reference.
        scored: the base, and this candidate.
        seed: of the search.
        budget: full evaluations that are left; None: no limit.
        thorough: whether to be surer of small effects.
        repaired_before: settings found guilty before, put right in this candidate.
        inside: guilty settings whose finer ones are searched.
        groups: setting -> finer ones that may be searched inside it.
        announced: full evaluations that the whole bisection was said to take, None before that;
            ``spent``: what it took before this search. A search inside a culprit takes no more than
            is left.
        ratios: by module, how far a trace found it beyond the floor: what is measured first.
        level: one-sided, at which the gate calls a drift real.
    """

    subject: Subject
    candidate: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    seed: int
    budget: float | None
    thorough: bool
    repaired_before: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[Setting]] = field(default_factory=dict)
    announced: float | None = None
    spent: float = 0.0
    ratios: Mapping[str, float] = field(default_factory=dict)
    level: float = 0.025

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The candidate's settings by name."""
        return {setting.name: setting for setting in self.candidate.variant.settings}

    @property
    def allowed(self) -> float | None:
        """Full evaluations that this search may take; None: no limit but its own."""
        if not self.inside or self.announced is None:
            return self.budget
        remaining = max(self.announced - self.spent, 0.0)
        return remaining if self.budget is None else min(remaining, self.budget)


_SIDES = ("candidate", "reference")


def constraints_among(variant: Variant, searched: Sequence[str]) -> tuple[Constraint, ...]:
    """Return what the constraints say about the settings that are searched.

    Every other setting stays at its value. A value that is neither of a setting's two is one that
    it never has.
    """
    rules = []
    for constraint in variant.constraints:
        when = _searched_sides(constraint.when, variant, searched)
        then = _searched_sides(constraint.then, variant, searched)
        if when is None or (then is None and not when):
            continue  # it never applies; or it breaks the candidate, which was scored
        if then is None:  # always broken where it applies: what applies cannot be
            name, side = next(iter(when.items()))
            then = {name: _SIDES[1 - _SIDES.index(side)]}
        if then:
            rules.append(Constraint(when=when, then=then))
    return tuple(rules)


def _searched_sides(
    values: Mapping[str, Value], variant: Variant, searched: Sequence[str]
) -> dict[str, Value] | None:
    """The part about searched settings; None if the values can never be."""
    settings = {setting.name: setting for setting in variant.settings}
    sides: dict[str, Value] = {}
    for name, value in values.items():
        if name in searched:
            side = _side(settings[name], variant.assignment.get(name), value)
            if side is None:
                return None
            sides[name] = side
        elif variant.assignment.get(name) != value:
            return None
    return sides


def _side(setting: Setting, candidate: Value, value: Value) -> str | None:
    if value == candidate:
        return "candidate"
    return "reference" if value == setting.reference else None


def document_costs(plan: SearchPlan, scale: FigureScale) -> tuple[Floats, Floats] | None:
    """Characters that either side generated for each document, (n,); None where one is unknown."""
    sides = [written_by(side, scale) for side in plan.scored]
    if any(len(side) < len(scale.doc_ids) for side in sides):
        return None
    base, candidate = (
        np.array([sum(map(len, side[doc].texts)) for doc in scale.doc_ids], dtype=np.float64)
        for side in sides
    )
    return base, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """What a search came to.

    Attributes:
        asked: the oracle as the search saw it, with why it ended early.
        recommendation: values of the culprits beyond the two; None where there are none.
        told_cleared: settings that were told to be no longer suspected.
    """

    plan: SearchPlan
    oracle: SettingsOracle
    asked: StoppableOracle
    result: BisectResult
    recommendation: Recommendation | None
    told_cleared: frozenset[str]

    def reported(self) -> MetricSearch:
        """As it is reported."""
        plan, result, recommendation = self.plan, self.result, self.recommendation
        task, filter_name, metric = plan.subject.key
        failure = self.asked.failure
        return MetricSearch(
            task=task,
            filter=filter_name,
            metric=metric,
            status=result.status,
            n=self.oracle.n_documents,
            margin=plan.subject.margin,
            settings=self.oracle.settings,
            repaired_before=plan.repaired_before,
            inside=plan.inside,
            drift_sigma=_number(result.drift_sigma),
            outside_sigma=self._outside(),
            unexplained_sigma=_number(result.unexplained_sigma),
            culprits=self._culprits(),
            suspects=result.suspects,
            parts=result.parts,
            cleared=self._cleared(),
            coarse=plan.subject.is_coarse,
            log_unit=self.oracle.scale.log_unit,
            unit=plan.subject.unit,
            inert=self._inert(),
            untestable=_untestable(result),
            evaluations=result.cost + (recommendation.cost if recommendation else 0.0),
            probes=len(result.probes) + (len(recommendation.trials) if recommendation else 0),
            measured=result.probes,
            loads=self.oracle.loads,
            written=self.oracle.written,
            one_at_a_time=self._one_at_a_time(),
            seed=plan.seed,
            ended=self._end_state(),
            failure="" if failure is None else error_text(failure),
        )

    def _end_state(self) -> Ended:
        """Why nothing more is to be asked, also where the culprits were known by then."""
        if self.asked.failure is not None:
            return "failed"
        stopped = self.result.status == "stopped"
        if self.asked.interrupted or (stopped and self.plan.budget is None):
            return "interrupted"  # also where Ctrl-C came while nothing was asked
        return "budget" if stopped else ""

    def _outside(self) -> float:
        """Drift from the base to all settings at reference."""
        if self.asked.reference is None:
            return 0.0
        scale = self.plan.subject.scale
        drift = float(np.mean(self.plan.subject.base) - np.mean(self.asked.reference))
        return scale.sigma(drift / scale.yardstick) - scale.sigma(0.0)

    def _culprits(self) -> tuple[GuiltySetting, ...]:
        settings, subject = self.plan.settings, self.plan.subject
        assignment = self.plan.candidate.variant.assignment
        return tuple(
            GuiltySetting(
                setting=culprit.name,
                reference=shown_value(settings[culprit.name].reference, settings[culprit.name]),
                candidate=shown_value(assignment[culprit.name], settings[culprit.name]),
                target=str(settings[culprit.name].target),
                sigma_alone=culprit.sigma_alone,
                alone_error_sigma=culprit.alone_error_sigma,
                alone_share=culprit.alone_share,
                sigma_in_context=culprit.sigma_in_context,
                shapley_sigma=culprit.shapley_sigma,
                error_sigma=culprit.error_sigma,
                role=culprit.role,
                partners=culprit.partners,
                task=subject.key[0],
                filter=subject.key[1],
                metric=subject.key[2],
                unit=subject.unit,
            )
            for culprit in self.result.culprits
        )

    def _cleared(self) -> tuple[str, ...]:
        """Settings that are innocent: by the repaired candidate, else by what the search told.

        A search for the largest causes clears them only where they leave no more than the gate
        allows; else a finer search does.
        """
        result, subject = self.result, self.plan.subject
        proven = result.status in ("minimal", "masked")
        within = proven and abs(result.unexplained_sigma) <= subject.clears_below
        beyond_gate = subject.gate_margin is not None
        if result.status == "diffuse" or (beyond_gate and not within):
            return ()
        cleared = set(result.repaired) if proven else set(self.told_cleared)
        cleared -= {culprit.name for culprit in result.culprits}
        cleared -= {suspect.name for suspect in result.suspects}
        cleared -= set(self._inert())
        return tuple(name for name in self.oracle.settings if name in cleared)

    def _one_at_a_time(self) -> WrittenTexts | None:
        """What every setting by itself, on all documents, would have generated, about."""
        scale = self.plan.subject.scale
        if not isinstance(scale, FigureScale):
            return None
        sides = (written_by(side, scale) for side in self.plan.scored)
        base, candidate = (count_texts(side.values()) for side in sides)
        guilty = len(self.result.culprits)
        return base.times(len(self.oracle.settings) - guilty) + candidate.times(guilty)

    def _inert(self) -> tuple[str, ...]:
        """Settings that changed nothing where they were asked, or in the loaded model."""
        inert = {*self.result.inert, *self.oracle.inert_by_readback}
        declared = (*self.oracle.settings, *self.oracle.inert_by_readback)
        return tuple(name for name in declared if name in inert)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _untestable(result: BisectResult) -> tuple[UntestableAssignment, ...]:
    """The assignments that could not be built or run."""
    return tuple(
        UntestableAssignment(settings=probe.settings, outcome=probe.outcome, reason=probe.reason)
        for probe in result.untestable
        if probe.outcome != "scored"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedMetric:
    """What a search found: as it is reported, and as it was returned.

    ``announced``: full evaluations that the whole bisection was said to take.
    """

    search: MetricSearch
    announced: float | None = None
    result: BisectResult
    recommendation: Recommendation | None

    @property
    def reset(self) -> tuple[str, ...]:
        """The settings to put right: the culprits, and what cannot be built without them."""
        guilty = {culprit.name for culprit in self.result.culprits}
        if self.result.status in ("minimal", "masked"):
            guilty = set(self.search.settings) - set(self.result.repaired)
        return tuple(name for name in self.search.settings if name in guilty)

    def cut_short(self, error: BaseException) -> SearchedMetric:
        """The same, where something that came after it failed, so that nothing more is asked."""
        if self.search.ended:
            return self
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            return replace(self, search=replace(self.search, ended="interrupted"))
        return replace(self, search=replace(self.search, ended="failed", failure=error_text(error)))


def search_metric(
    plan: SearchPlan, oracle: SettingsOracle, progress: BisectionProgress
) -> SearchedMetric:
    """Search the settings of a model for those that make a metric drift.

    Raises:
        EvalguardError: the base or the candidate cannot be measured.
    """
    asked = StoppableOracle(oracle)
    result = _run_search(plan, oracle, asked, progress)
    if result.status == "stopped" and _took_all_allowed(plan, asked):
        result = replace(result, status="unexplained")  # as fine as was to be told
    if asked.failure is not None and math.isnan(result.drift_sigma):
        raise EvaluationError(error_text(asked.failure)) from asked.failure
    try:
        recommendation = _recommend_values(plan, oracle, asked, result)
    except KeyboardInterrupt:  # before anything was tried; the culprits stand
        asked.interrupted, recommendation = True, None
    outcome = SearchOutcome(
        plan=plan,
        oracle=oracle,
        asked=asked,
        result=result,
        recommendation=recommendation,
        told_cleared=frozenset(progress.cleared),
    )
    return SearchedMetric(
        search=outcome.reported(),
        announced=plan.announced,
        result=result,
        recommendation=recommendation,
    )


def _took_all_allowed(plan: SearchPlan, asked: StoppableOracle) -> bool:
    """Whether what a search inside a culprit was announced to take ended it, and nothing else."""
    if asked.interrupted or asked.failure is not None or plan.allowed is None:
        return False
    return plan.budget is None or plan.allowed < plan.budget


def _run_search(
    plan: SearchPlan, oracle: SettingsOracle, asked: StoppableOracle, progress: BisectionProgress
) -> BisectResult:
    scale = oracle.scale
    counted = isinstance(scale, FigureScale) and not are_drawn(plan.scored[1], scale)
    return find_culprits(
        asked,
        oracle.settings,
        margin=scale.margin(plan.subject.margin),
        yardstick=scale.yardstick,
        seed=plan.seed,
        budget=plan.allowed,
        constraints=constraints_among(plan.candidate.variant, oracle.settings),
        thorough=plan.thorough,
        on_event=progress,
        unit=scale.sigma,
        level=plan.level if isinstance(scale, (DocumentScale, FigureScale)) else None,
        counted=counted,
        document_costs=document_costs(plan, scale) if isinstance(scale, FigureScale) else None,
        base_scores=plan.subject.base,
        prior=weigh_settings(plan.ratios, plan.settings.values()),
    )


def _recommend_values(
    plan: SearchPlan, oracle: SettingsOracle, asked: StoppableOracle, result: BisectResult
) -> Recommendation | None:
    """Values beyond the two, where the culprits declare any."""
    settings, scale = plan.settings, oracle.scale
    guilty = [culprit.name for culprit in result.culprits]
    alternatives = {name: settings[name].alternatives for name in guilty}
    if result.status not in ("minimal", "masked") or not any(alternatives.values()):
        return None
    return recommend(
        asked,
        guilty,
        alternatives,
        references={name: settings[name].reference for name in guilty},
        margin=scale.margin(plan.subject.margin),
        yardstick=scale.yardstick,
        unit=scale.sigma,
        budget=None if plan.budget is None else max(plan.budget - result.cost, 0.0),
    )


KEPT_FOLDER = "kept"
"""Of a run folder: what a bisection without a cache has finished, until it ends by itself."""
_MOST_EXPECTED = 3  # guilty settings whose cost is told before a search


def foresee_evaluations(settings: int) -> tuple[float, ...]:
    """Full evaluations that 1, 2 and 3 guilty settings are expected to take."""
    most = min(settings, _MOST_EXPECTED)
    return tuple(expected_evaluations(settings, guilty) for guilty in range(1, most + 1))


def announce_evaluations(
    settings: Sequence[str], groups: Mapping[str, Sequence[Setting]], *, thorough: bool = False
) -> float:
    """Full evaluations that a bisection is said to take at most, searches inside culprits included.

    What three culprits are expected to take, then one at every level inside, with what is measured
    to begin there: a culprit's own drift.
    """

    def inside(name: str) -> float:
        finer = [setting.name for setting in groups.get(name, ())]
        if not finer:
            return 0.0
        return 1.0 + expected_evaluations(len(finer), 1) + max(map(inside, finer))

    most = foresee_evaluations(len(settings))[-1] if settings else 0.0
    deepest = max(map(inside, settings), default=0.0)
    return (_THOROUGH if thorough else 1.0) * (most + deepest)


_THOROUGH = 3.0  # times as many evaluations, where jitter is what limits a search


def search_model(
    plan: SearchPlan,
    finished: FinishedComparison,
    *,
    open_oracle: OpenOracle,
    progress: ProgressLine,
) -> SearchedMetric:
    """Search the settings of a model for those that make a metric drift.

    What was found stands, whatever happens on the way out: a second Ctrl-C while workers end, a
    disk that is full by then.

    Raises:
        EvalguardError: the search could not begin.
    """
    searched: SearchedMetric | None = None
    try:
        with _open_oracle(plan, finished, open_oracle, progress) as oracle:
            if plan.announced is None:
                most = announce_evaluations(oracle.settings, plan.groups, thorough=plan.thorough)
                plan = replace(plan, announced=most)
            searched = search_metric(plan, oracle, _start_progress(plan, oracle, progress))
    except (Exception, KeyboardInterrupt) as error:
        if searched is None:
            raise
        return searched.cut_short(error)
    return searched


def _open_oracle(
    plan: SearchPlan, finished: FinishedComparison, open_oracle: OpenOracle, progress: ProgressLine
) -> AbstractContextManager[SettingsOracle]:
    limit, folder = plan.subject.limit, finished.folder
    inquiry = OracleRequest(
        candidate=plan.candidate,
        scored=plan.scored,
        key=plan.subject.key,
        held_to=None if limit is None else SearchedLimit(scale=limit, base=finished.sources[0]),
    )
    surroundings = OracleContext(
        choices=finished.choices,
        options=finished.options,
        kept=None if folder is None else folder / KEPT_FOLDER,
        jobs=finished.choices.bisect.jobs,
        say=progress.note,
        meter=finished.meter,
    )
    return open_oracle(inquiry, surroundings)


def _start_progress(
    plan: SearchPlan, oracle: SettingsOracle, progress: ProgressLine
) -> BisectionProgress:
    """Say what begins.

    Raises:
        EvaluationError: there is nothing to search.
    """
    if not oracle.settings:
        same = ", ".join(oracle.inert_by_readback)
        raise EvaluationError(f"no setting changes the loaded model: {same}")
    subject = plan.subject
    shown = BisectionProgress(
        progress,
        settings=oracle.settings,
        documents=oracle.n_documents,
        seconds=oracle.seconds_per_evaluation,
        subject=key_label(*subject.key),
        log_unit=oracle.scale.log_unit,
        unit=subject.unit,
    )
    shown.start(
        subject.sigma,
        foresee_evaluations(len(oracle.settings)),
        coarse=subject.is_coarse,
        announced=plan.announced,
        spent=plan.spent,
    )
    return shown
