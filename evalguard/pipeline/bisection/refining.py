"""Refining: a guilty setting that stands for several finer ones, searched inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from evalguard.limit_scale import LimitScale
from evalguard.pipeline.bisection.finished import Finished
from evalguard.pipeline.bisection.subject import Subject
from evalguard.pipeline.distribution_choice import DistributionChoice
from evalguard.pipeline.scored import Scored, scored_model
from evalguard.pipeline.scoring import score_models
from evalguard.pipeline.sources import ModelSource
from evalguard.settings import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
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
    ) -> Refined:
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


def scored_alone(
    finished: Finished, source: ModelSource, subject: Subject
) -> tuple[Scored, Scored]:
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
    return finished.scored[0], scored_model(source, evaluation)
