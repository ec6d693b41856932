"""What a search came to, and how it is reported."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.recommendation import Recommendation
from evalguard.bisect.search_result import BisectResult
from evalguard.core.figure_scale import FigureScale
from evalguard.core.redaction import shown_value
from evalguard.core.reports.bisect_report import (
    Ended,
    GuiltySetting,
    Measured,
    MetricSearch,
    UntestableAssignment,
    WrittenTexts,
)
from evalguard.errors import error_text
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.bisection.settings_oracle import (
    SettingsOracle,
)
from evalguard.run.bisection.stoppable_oracle import StoppableOracle
from evalguard.run.bisection.written_texts import count_texts, written_by


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
        plan, result, more = self.plan, self.result, self.recommendation
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
            evaluations=result.cost + (more.cost if more else 0.0),
            probes=len(result.probes) + (len(more.trials) if more else 0),
            measured=_measured(result),
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
        kept = set(result.repaired) if proven else set(self.told_cleared)
        kept -= {culprit.name for culprit in result.culprits}
        kept -= {suspect.name for suspect in result.suspects}
        kept -= set(self._inert())
        return tuple(name for name in self.oracle.settings if name in kept)

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
        found = {*self.result.inert, *self.oracle.inert_by_readback}
        declared = (*self.oracle.settings, *self.oracle.inert_by_readback)
        return tuple(name for name in declared if name in found)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _measured(result: BisectResult) -> tuple[Measured, ...]:
    """Every measurement, in order; what was not scored has no drift."""
    return tuple(
        Measured(
            settings=probe.settings,
            documents=probe.documents,
            documents_so_far=probe.documents_so_far,
            drift_sigma=_finite(probe.drift_sigma),
            error_sigma=_finite(probe.error_sigma),
            outcome=probe.outcome,
            reason=probe.untestable,
            cost=probe.cost,
        )
        for probe in result.probes
    )


def _untestable(result: BisectResult) -> tuple[UntestableAssignment, ...]:
    """The assignments that could not be built or run."""
    return tuple(
        UntestableAssignment(
            settings=probe.settings, outcome=probe.outcome, reason=probe.untestable
        )
        for probe in result.untestable
        if probe.outcome != "scored"
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
