"""Scores the models of a comparison on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalguard.pipeline.baseline.asked_alike import check_asked_alike
from evalguard.pipeline.batch_check import check_batch_size
from evalguard.pipeline.bench import bench
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluation
from evalguard.pipeline.fallback import with_fallback
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.measuring import Measuring
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.open_scorer import Opener
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.scored import Scored, asked_only, scored_model, scored_stored
from evalguard.pipeline.scorer_check import check_scorer
from evalguard.pipeline.sessions import Sessions
from evalguard.pipeline.sources import KeptSource, ModelSource, Source, StoredSource


def score_models(
    sources: Sequence[ModelSource],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: Opener | None = None,
    meter: Meter | None = None,
    stored: KeptSource | None = None,
) -> list[Evaluation]:
    """Score each model on all tasks, and compare the distributions of two where that can be done.

    Args:
        opener: loads a model in place of ``open_scorer``.
        meter: counts what this takes.
        stored: the base in whose place scores stand that were kept of it.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading and scoring do. Finished blocks of
            documents stay in the score cache.
        UsageError, MisalignedRunsError: before anything is loaded, if ``stored`` was not asked the
            same.
    """
    if not sources:
        return []

    def score(choices: Choices) -> list[Evaluation]:
        with bench(choices, options, opener=opener, meter=meter) as place:
            if stored is not None:
                check_asked_alike(stored, place.evaluator, choices)
            sessions = Sessions(place)
            evaluations = Measuring(sessions).evaluate(sources)
            return [
                checked(evaluation, source, sessions)
                for evaluation, source in zip(evaluations, sources, strict=True)
            ]

    evaluations, notes = with_fallback(sources, choices, score)
    return [replace(one, notes=(*one.notes, *notes)) for one in evaluations]


def score_sides(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: Opener | None = None,
    meter: Meter | None = None,
    base: Scored | None = None,
) -> tuple[Scored, Scored]:
    """Score the sides that are models; the others have their scores.

    Args:
        opener: loads a model in place of ``open_scorer``, for a caller that watches it work.
        meter: counts what this takes.
        base: the first side, where it is scored already.
    """
    asked = sources if base is None else sources[1:]
    models = [source for source in asked if isinstance(source, ModelSource)]
    stored = next((source for source in sources if isinstance(source, KeptSource)), None)
    evaluations = iter(
        score_models(models, choices, options, opener=opener, meter=meter, stored=stored)
    )
    found = [
        scored_stored(source)
        if isinstance(source, StoredSource)
        else scored_model(source, next(evaluations))
        for source in asked
    ]
    first, candidate = found if base is None else (base, *found)
    return asked_only(first, candidate), candidate


def checked(evaluation: Evaluation, source: ModelSource, sessions: Sessions) -> Evaluation:
    """Add what checks of the batch size and of the scorer say, if there are to be any.

    Raises:
        EvaluationError: lm-eval's own path gives other scores.
    """
    options, notes = sessions.bench.options, evaluation.notes
    if options.check_batch_size:
        with interruptible(f"checking the batch size of {source.name}"):
            notes = (*notes, check_batch_size(source, sessions.bench))
    if options.verify_scorer:
        with interruptible(f"verifying the scores of {source.name}"):
            notes = (*notes, *check_scorer(source, sessions.bench))
    return replace(evaluation, notes=notes)
