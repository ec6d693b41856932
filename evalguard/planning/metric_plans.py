"""From the scores of a pilot to the plan of every metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from evalguard.answers.document_figures import figure_share
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.limits import closest_limit
from evalguard.core.pairing import order_rows, pair, pick_rows
from evalguard.core.scores import ScoreTable
from evalguard.engine.choices import Choices
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import MisalignedRunsError, UsageError
from evalguard.planning.limit_plan import LimitPlan, plan_limit
from evalguard.planning.metric_plan import AimFacts, MetricPlan, plan_metric
from evalguard.planning.pilot import Pilot, pilot_of_comparison, pilot_of_scores
from evalguard.stats.compare_scores import compare_scores, failed_comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAim:
    """What a plan is made for: a gate with its margins, and a power."""

    gate: Gate
    power: float

    @property
    def confidence(self) -> float:
        """Of all intervals."""
        return self.gate.confidence

    @property
    def alpha(self) -> float:
        """One-sided level of the paired test: the interval at ``confidence`` leaves 0."""
        return self.gate.level

    @classmethod
    def of(cls, gate: Gate, power: float) -> PlanAim:
        """The aim of a gate.

        Raises:
            UsageError: for a power that is none.
        """
        if not 0.5 <= power < 1.0:
            raise UsageError(f"a power lies between 0.5 and 1, not {power}")
        return cls(gate=gate, power=power)

    def facts(self, plans: Iterable[MetricPlan]) -> AimFacts:
        """The aim as reports show it."""
        return AimFacts(
            margin=self.gate.least_margin(plan.margin for plan in plans),
            alpha=self.alpha,
            power=self.power,
            confidence=self.confidence,
        )

    def plan(
        self, pilot: Pilot, n: int, *, metrics: int, available: int | None = None
    ) -> MetricPlan:
        """Plan a run of n documents of those available, by the metric's own margin.

        One that the gate does not judge, and that has no such margin, is planned for 1 sigma.
        ``metrics``: how many are gated.
        """
        margin = self.gate.margin_of(pilot.task, pilot.metric)
        gated = self.gate.covers(pilot.task, pilot.filter, pilot.metric)
        asked = partial(
            plan_metric,
            pilot,
            n=n,
            alpha=self.alpha,
            power=self.power,
            metrics=metrics if gated else 1,
            available=available,
        )
        plan = asked(margin=margin)
        if gated or plan.pilot.problem == pilot.problem:
            return plan
        return asked(margin=1.0)


def plan_metrics(
    scored: tuple[ScoredSide, ScoredSide],
    sources: tuple[Source, Source],
    choices: Choices,
    aim: PlanAim,
) -> tuple[tuple[MetricPlan, ...], bool]:
    """Plan every metric that either side has, from the scores of a pilot.

    Returns:
        The plans, and whether any metric failed to give scores, or has no such margin.
    """
    bases, candidates = ({table.key: table for table in side.tables} for side in scored)
    plans, failed = [], False
    gated = sum(aim.gate.covers(*key) for key in {*bases, *candidates})
    for key in dict.fromkeys([*bases, *candidates]):
        table = bases.get(key) or candidates[key]
        if table.figure and not aim.gate.covers(*key):
            continue  # held to a limit alone
        if key not in bases or key not in candidates:
            present = "candidate" if key in candidates else "base"
            comparison = failed_comparison(table, f"only the {present} has this metric")
            pilot = pilot_of_comparison(comparison, confidence=aim.confidence)
        else:
            base, candidate = _same_documents(bases[key], candidates[key], sources)
            pilot, comparison = _metric_pilot(base, candidate, choices, aim)
        planned = count_planned_documents(table, choices)
        plan = aim.plan(pilot, planned, metrics=gated, available=table.n_total or table.n)
        failed = failed or comparison.outcome == "failed" or plan.pilot.problem != pilot.problem
        plans.append(plan)
    return tuple(plans), failed


def plan_limits(candidate: ScoredSide, choices: Choices, aim: PlanAim) -> tuple[LimitPlan, ...]:
    """Plan every limit on figures of answers, from the candidate's of the pilot."""
    limits = [limit for limit in aim.gate.limits if limit.of_figure]
    plans = []
    for table in candidate.tables if limits else ():
        if not table.figure:
            continue
        share = figure_share(table, confidence=aim.confidence)
        if not any(limit.covers(share) for limit in limits):
            continue
        plans.append(
            plan_limit(
                closest_limit(limits, share),
                task=table.task,
                filter_name=table.filter,
                n=count_planned_documents(table, choices),
                pilot_n=share.n,
                share=share.figure.value,
                level=aim.alpha,
                power=aim.power,
            )
        )
    return tuple(plans)


def _metric_pilot(
    base: ScoreTable, candidate: ScoreTable, choices: Choices, aim: PlanAim
) -> tuple[Pilot, Comparison]:
    try:
        paired = pair(base, candidate, allow=choices.allow)
    except MisalignedRunsError as error:
        reason = "; ".join(part for part in (str(error), error.hint) if part)
        comparison = failed_comparison(base, reason)
        return pilot_of_comparison(comparison, confidence=aim.confidence), comparison
    comparison = compare_scores(paired, confidence=aim.confidence)
    return pilot_of_scores(paired, comparison, confidence=aim.confidence), comparison


def _same_documents(
    base: ScoreTable, candidate: ScoreTable, sources: tuple[Source, Source]
) -> tuple[ScoreTable, ScoreTable]:
    """Of a finished run beside a model, take the documents that the pilot drew."""
    first, second = (isinstance(source, ModelSource) for source in sources)
    if first and not second:
        return _without_limit(base), _without_limit(_rows_of_other(candidate, base))
    if second and not first:
        return _without_limit(_rows_of_other(base, candidate)), _without_limit(candidate)
    return base, candidate


def _rows_of_other(table: ScoreTable, other: ScoreTable) -> ScoreTable:
    table = order_rows(table, table.source or "the finished run")
    return pick_rows(table, np.flatnonzero(np.isin(table.doc_ids, other.doc_ids)))


def _without_limit(table: ScoreTable) -> ScoreTable:
    run = {name: value for name, value in table.run.items() if name != "limit"}
    return dataclasses.replace(table, run=run)


def count_planned_documents(table: ScoreTable, choices: Choices) -> int:
    """Documents of the run that is planned: all of the task, or as many as the limit says."""
    total, limit = table.n_total or table.n, choices.task_options.limit
    if limit is not None:
        total = min(total, math.ceil(total * limit) if limit < 1 else int(limit))
    return max(2, total)
