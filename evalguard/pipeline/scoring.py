"""Scores the models of a comparison, one after the other, on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalguard.harness import load_tasks
from evalguard.pipeline.batch_check import check_batch_size
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluation, Evaluator
from evalguard.pipeline.fairness import check_fair
from evalguard.pipeline.interruption import interruptible
from evalguard.pipeline.open_scorer import open_scorer
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.places import placed
from evalguard.pipeline.sources import ModelSource
from evalguard.report.progress import Progress
from evalguard.scorer import ModelDescription
from evalguard.store import ScoreCache, default_cache_dir


def score_models(
    sources: Sequence[ModelSource], choices: Choices, options: CompareOptions
) -> list[Evaluation]:
    """Score each model on all tasks; at any time one model is loaded.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading and scoring do. Finished blocks of
            documents stay in the score cache.
    """
    if not sources:
        return []
    cache_dir = options.cache_dir or default_cache_dir()
    progress = Progress(quiet=options.quiet)
    with progress:
        names = ", ".join(choices.tasks)
        progress.note(f"loading tasks: {names}")
        with interruptible(f"loading tasks ({names})"):
            tasks = load_tasks(choices.tasks, options=choices.task_options)
        evaluator = Evaluator(
            tasks=tasks,
            cache=ScoreCache(cache_dir / "scores") if options.use_cache else None,
            progress=progress,
            chat=bool(choices.task_options.apply_chat_template),
        )
        evaluations: list[Evaluation] = []
        for source in sources:
            before = evaluations[0].description if evaluations else None
            evaluations.append(_score(source, evaluator, choices, options, cache_dir, before))
    return evaluations


def _score(
    source: ModelSource,
    evaluator: Evaluator,
    choices: Choices,
    options: CompareOptions,
    cache_dir: Path,
    before: ModelDescription | None,
) -> Evaluation:
    evaluator.progress.note(f"loading {source.name}")
    with interruptible(f"loading {source.name}"), placed(source):
        scorer = open_scorer(source.variant, choices.policy, options, cache_dir=cache_dir)
    try:
        if before is not None:
            check_fair(before, scorer.describe(), allow=choices.allow)
        evaluation = evaluator.evaluate(source.name, scorer)
    finally:
        scorer.close()
    if options.check_batch_size:
        with interruptible(f"checking the batch size of {source.name}"):
            note = check_batch_size(source, evaluator, choices, options, cache_dir)
        evaluation = replace(evaluation, notes=(*evaluation.notes, note))
    return evaluation
