"""Who makes one metric drift, asked of one model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evalguard.bisect.find import find_culprits
from evalguard.bisect.recommendation import Recommendation, recommend
from evalguard.bisect.search_result import BisectResult
from evalguard.core.document_scale import DocumentScale
from evalguard.core.figure_scale import FigureScale
from evalguard.core.reports.bisect_report import (
    MetricSearch,
)
from evalguard.errors import EvaluationError, Interrupted, error_text
from evalguard.report.bisection_progress import BisectionProgress
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.bisection.search_constraints import constraints_among
from evalguard.run.bisection.search_outcome import SearchOutcome
from evalguard.run.bisection.settings_oracle import (
    SettingsOracle,
)
from evalguard.run.bisection.stoppable_oracle import StoppableOracle
from evalguard.run.bisection.written_texts import are_drawn, document_costs
from evalguard.run.modules.trace_prior import weigh_settings


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
