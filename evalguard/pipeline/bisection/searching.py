"""Searching: who makes one metric drift, asked of one model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evalguard.bisect import BisectResult, Recommendation, find_culprits, recommend
from evalguard.bisect_report import MetricSearch
from evalguard.document_scale import DocumentScale
from evalguard.errors import EvaluationError, Interrupted
from evalguard.pipeline.bisection.buildable import constraints_among
from evalguard.pipeline.bisection.open_oracle import SettingsOracle
from evalguard.pipeline.bisection.search_outcome import SearchOutcome
from evalguard.pipeline.bisection.search_plan import SearchPlan
from evalguard.pipeline.bisection.unbroken import Unbroken
from evalguard.pipeline.told_error import told
from evalguard.report.bisect_progress import BisectProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found: as it is reported, and as it was returned."""

    search: MetricSearch
    result: BisectResult
    recommendation: Recommendation | None

    @property
    def reset(self) -> tuple[str, ...]:
        """The settings to put right: the culprits, and what cannot be built without them."""
        guilty = {culprit.name for culprit in self.result.culprits}
        if self.result.status in ("minimal", "masked"):
            guilty = set(self.search.settings) - set(self.result.repaired)
        return tuple(name for name in self.search.settings if name in guilty)

    def cut_short(self, error: BaseException) -> Searched:
        """The same, where something that came after it failed, so that nothing more is asked."""
        if self.search.ended:
            return self
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            return replace(self, search=replace(self.search, ended="interrupted"))
        return replace(self, search=replace(self.search, ended="failed", failure=told(error)))


def search_metric(plan: SearchPlan, oracle: SettingsOracle, progress: BisectProgress) -> Searched:
    """Search the settings of a model for those that make a metric drift.

    Raises:
        EvalguardError: the base or the candidate cannot be measured.
    """
    asked = Unbroken(oracle)
    result = _found(plan, oracle, asked, progress)
    if asked.failure is not None and math.isnan(result.drift_sigma):
        raise EvaluationError(told(asked.failure)) from asked.failure
    try:
        recommendation = _recommended(plan, oracle, asked, result)
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
    return Searched(search=outcome.reported(), result=result, recommendation=recommendation)


def _found(
    plan: SearchPlan, oracle: SettingsOracle, asked: Unbroken, progress: BisectProgress
) -> BisectResult:
    scale = oracle.scale
    return find_culprits(
        asked,
        oracle.settings,
        margin=scale.margin(plan.subject.margin),
        yardstick=scale.yardstick,
        seed=plan.seed,
        budget=plan.budget,
        constraints=constraints_among(plan.candidate.variant, oracle.settings),
        thorough=plan.thorough,
        on_event=progress,
        unit=scale.sigma,
        may_be_chance=isinstance(scale, DocumentScale),
    )


def _recommended(
    plan: SearchPlan, oracle: SettingsOracle, asked: Unbroken, result: BisectResult
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
