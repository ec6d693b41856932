"""A guilty setting that stands for several finer ones, searched inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from evalguard.core.limit_scale import LimitScale
from evalguard.core.settings import Setting
from evalguard.run.bisection.subject import Subject
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.scoring.distribution_choice import DistributionChoice
from evalguard.run.scoring.score_models import score_models
from evalguard.run.scoring.scored_side import ScoredSide, side_of_model
from evalguard.run.scoring.side_figures import with_named_figures
from evalguard.run.sources import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedCandidate:
    """A candidate with finer settings in place of some.

    Attributes:
        whole: the candidate itself.
        alone: with the finer settings at candidate, and every other at reference.
    """

    whole: ModelSource
    alone: ModelSource

    @classmethod
    def of(
        cls,
        candidate: ModelSource,
        groups: Mapping[str, tuple[Setting, ...]],
        names: Collection[str],
    ) -> RefinedCandidate:
        """Replace settings by their finer ones."""
        variant = candidate.variant
        finer = [one for name in names for one in groups[name]]
        settings = tuple(
            part
            for one in variant.settings
            for part in (groups[one.name] if one.name in names else (one,))
        )
        kept = {n: value for n, value in variant.assignment.items() if n not in names}
        values = {**kept, **{one.name: one.candidate for one in finer}}
        whole = replace(variant, settings=settings, assignment=values)
        references = {one.name: one.reference for one in settings if one.name in kept}
        alone = replace(whole, assignment={**values, **references})
        return cls(
            whole=replace(candidate, variant=whole),
            alone=replace(candidate, name=f"{candidate.name} (guilty parts)", variant=alone),
        )


def score_candidate_alone(
    finished: FinishedComparison, source: ModelSource, subject: Subject
) -> tuple[ScoredSide, ScoredSide]:
    """The base, and this model's scores of the subject's task; of a limit, beside the base.

    Raises:
        UsageError, EvaluationError, Interrupted: as scoring does.
    """
    choices, base = replace(finished.choices, tasks=(subject.key[0],)), finished.sources[0]
    if isinstance(subject.limit, LimitScale) and isinstance(base, ModelSource):
        _, evaluation = score_models([base, source], choices, finished.options)
    else:
        off = DistributionChoice(mode="off")
        alone = replace(choices, distributions=off, memory="auto")
        (evaluation,) = score_models([source], alone, finished.options)
    sides = finished.scored[0], side_of_model(source, evaluation)
    return with_named_figures(sides, choices.gate, choices.answers)
