"""Scores the models of a comparison on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalguard.config.options import CompareOptions
from evalguard.engine.batches import CommonPolicy
from evalguard.engine.choices import Choices
from evalguard.engine.executor import Evaluation
from evalguard.engine.interrupts import interruptible
from evalguard.engine.meter import Meter
from evalguard.engine.outputs.scored_outputs import score_dumps
from evalguard.engine.run_context import RunContext, open_run_context
from evalguard.engine.scored_side import (
    ScoredSide,
    limit_to_candidate_tasks,
    side_of_model,
    side_of_stored,
)
from evalguard.engine.scorer_check import check_scorer
from evalguard.engine.scoring_plan import ScoringPlan
from evalguard.engine.side_figures import with_named_figures
from evalguard.engine.sources import (
    BaselineSource,
    DumpSource,
    ModelSource,
    ReferenceSource,
    Source,
    StoredSource,
)
from evalguard.engine.stored_requests import check_stored_requests
from evalguard.models.served.shown_logprobs import TOP_ARGUMENT


def score_models(
    sources: Sequence[ModelSource],
    choices: Choices,
    options: CompareOptions,
    *,
    meter: Meter | None = None,
    stored: BaselineSource | None = None,
    reference: ReferenceSource | None = None,
) -> list[Evaluation]:
    """Score each model on all tasks, and compare the distributions of two where that can be done.

    Args:
        meter: counts what this takes.
        stored: the base in whose place scores stand that were kept of it.
        reference: the base in whose place a file stands; its evaluation is the first then.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading and scoring do. Finished blocks of
            documents stay in the score cache.
        UsageError, MisalignedRunsError: before anything is loaded, if ``stored`` was not asked the
            same.
    """
    if not sources:
        return []

    shown, common = tokens_beside_server(sources), CommonPolicy(sources, choices)
    while True:
        with common.attempt() as choices:
            with open_run_context(choices, options, meter=meter, shown_tokens=shown) as context:
                if shown and choices.gate.needs_distributions:
                    context.executor.progress.note(_BOUND_ALONE)
                context.check_asked(sources)
                context.say_what_is_scored_anew(sources)
                if stored is not None:
                    check_stored_requests(stored, context.executor, choices)
                    context.expect_prompts_of(stored.run.rows)
                plan = ScoringPlan(context)
                if reference is not None:
                    (candidate,) = sources
                    ours, theirs = plan.evaluate_beside(reference, candidate)
                    evaluations = [ours, check_scores(theirs, candidate, context)]
                else:
                    evaluations = [
                        check_scores(evaluation, source, context)
                        for evaluation, source in zip(plan.evaluate(sources), sources, strict=True)
                    ]
            return [
                replace(evaluation, notes=(*evaluation.notes, *common.notes))
                for evaluation in evaluations
            ]


_BOUND_ALONE = (
    "the limit on KL is held to a lower bound, from the tokens that a server shows: it may be "
    "found broken (exit code 1), and else nothing is known of it (exit code 3)"
)
# A model beside a server that shows k tokens shows twice as many, so that nearly all of those meet.
_TIMES_SHOWN = 2


def tokens_beside_server(sources: Sequence[ModelSource]) -> int:
    """How many tokens of its distributions a model in this process shows; 0: none is asked for."""
    asked = [source.variant.model_args.get(TOP_ARGUMENT) for source in sources]
    return _TIMES_SHOWN * max((count for count in asked if isinstance(count, int)), default=0)


def score_sides(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    meter: Meter | None = None,
    base: ScoredSide | None = None,
) -> tuple[ScoredSide, ScoredSide]:
    """Score the sides that are models; the others have their scores.

    Args:
        meter: counts what this takes.
        base: the first side, where it is scored already.
    """
    if isinstance(sources[0], DumpSource) and isinstance(sources[1], DumpSource):
        sides = score_dumps(
            (sources[0], sources[1]), distributions=choices.distributions.mode != "off"
        )
        return with_named_figures(sides, choices.gate, choices.answers)
    asked = sources if base is None else sources[1:]
    models = [source for source in asked if isinstance(source, ModelSource)]
    stored = next((source for source in sources if isinstance(source, BaselineSource)), None)
    reference = next((source for source in asked if isinstance(source, ReferenceSource)), None)
    evaluations = iter(
        score_models(
            models, choices, options, meter=meter, stored=stored,
            reference=reference,
        )
    )  # fmt: skip
    scored = [
        side_of_stored(source)
        if isinstance(source, StoredSource)
        else side_of_model(source, next(evaluations))
        for source in asked
        if not isinstance(source, DumpSource)  # of which there are two or none
    ]
    first, candidate = scored if base is None else (base, *scored)
    sides = limit_to_candidate_tasks(first, candidate), candidate
    return with_named_figures(sides, choices.gate, choices.answers)


def check_scores(evaluation: Evaluation, source: ModelSource, context: RunContext) -> Evaluation:
    """Add what the check of the scorer says, if there is to be one.

    Raises:
        EvaluationError: lm-eval's own path gives other scores.
    """
    if not context.options.verify_scorer:
        return evaluation
    with interruptible(f"verifying the scores of {source.name}"):
        notes = check_scorer(source, context)
    return replace(evaluation, notes=(*evaluation.notes, *notes))
