"""The candidate with its culprits put right, judged as the comparison was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalguard.core.redaction import shown_value
from evalguard.core.reports.bisect_report import Repaired, RepairedMetric
from evalguard.core.settings import Assignment, Value
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.gate_judgement import GateJudgement
from evalguard.run.judging import judge_scores
from evalguard.run.scoring.distribution_choice import DistributionChoice
from evalguard.run.scoring.score_models import score_models
from evalguard.run.scoring.scored_side import ScoredSide, side_of_model
from evalguard.run.scoring.side_figures import with_named_figures
from evalguard.run.sources import ModelSource, ReferenceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRepair:
    """A repaired candidate with its scores and the gate's answer."""

    source: ModelSource
    scored: tuple[ScoredSide, ScoredSide]
    judgement: GateJudgement
    reset: tuple[str, ...]

    @property
    def repaired(self) -> Repaired:
        """As it is reported."""
        gate = self.judgement.gate
        return Repaired(
            assignment=shown_assignment(self.source),
            reset=self.reset,
            passed=gate.passed,
            state=gate.state,
            metrics=tuple(
                RepairedMetric(
                    task=one.task,
                    filter=one.filter,
                    metric=one.metric,
                    sigma=one.sigma,
                    outcome=one.outcome,
                    gated=one.key in gate.gated,
                )
                for one in self.judgement.comparisons
            ),
            limits=gate.limits,
        )


def reset_settings(
    candidate: ModelSource, reset: Sequence[str], values: Assignment | None = None
) -> ModelSource:
    """The candidate with some settings at their reference value, or at another that will do."""
    changed = {s.name: s.reference for s in candidate.variant.settings if s.name in reset}
    return replace(candidate, variant=candidate.variant.assigned({**changed, **(values or {})}))


def judge_repaired(
    finished: FinishedComparison, source: ModelSource, reset: Sequence[str]
) -> JudgedRepair:
    """Score a repaired candidate, and judge it as the candidate was judged.

    What of it was measured by the search comes from the score cache. The base is scored again only
    where the gate has limits on distributions, for which both models are needed.

    Raises:
        UsageError, EvaluationError, Interrupted: as scoring does.
    """
    choices, options, base = finished.choices, finished.options, finished.sources[0]
    named = replace(source, name=f"{source.name} (repaired)")
    if choices.gate.needs_distributions and isinstance(base, ModelSource):
        _, evaluation = score_models([base, named], choices, options)
    elif isinstance(base, ReferenceSource):
        _, evaluation = score_models([named], choices, options, reference=base)
    else:
        alone = replace(choices, distributions=DistributionChoice(mode="off"), memory="auto")
        (evaluation,) = score_models([named], alone, options)
    sides = finished.scored[0], side_of_model(named, evaluation)
    scored = with_named_figures(sides, choices.gate, choices.answers)
    judgement, _ = judge_scores(scored, choices, options)
    return JudgedRepair(source=source, scored=scored, judgement=judgement, reset=tuple(reset))


def shown_assignment(source: ModelSource) -> dict[str, Value]:
    """The value of every setting as it may be shown."""
    variant = source.variant
    return {s.name: shown_value(variant.assignment.get(s.name), s) for s in variant.settings}
