"""The batch-size check: does a model score a document the same alone and in a batch?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.open_scorer import open_scorer
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Request, Response, Scorer


def check_batch_size(
    source: ModelSource,
    evaluator: Evaluator,
    choices: Choices,
    options: CompareOptions,
    cache_dir: Path,
) -> str:
    """Score the first documents of every task in batches and one by one.

    Returns:
        One sentence with the largest and the mean difference in natural-log likelihood.
    """
    evaluator.progress.note(f"checking {source.name} at batch size 1")
    requests = _first_requests(evaluator, options.check_batch_size)
    answers = []
    for size in (choices.policy.batch_size, 1):
        policy = replace(choices.policy, batch_size=size)
        scorer = open_scorer(source.variant, policy, options, cache_dir=cache_dir)
        try:
            answers.append(_likelihoods(scorer, requests))
        finally:
            scorer.close()
    together, alone = answers
    difference = together - alone
    if difference.size == 0:
        return "no likelihood requests, so the batch size was not checked"
    return (
        f"batch size {choices.policy.batch_size} against 1 on {difference.size:,} requests: "
        f"largest difference {np.abs(difference).max():.2g} nats, mean {difference.mean():.2g}"
    )


def _first_requests(evaluator: Evaluator, documents: int) -> list[list[Request]]:
    """The likelihood requests of each task's first documents, one list per kind."""
    lists = []
    for task in evaluator.tasks.names:
        block = evaluator.tasks.requests(task).blocks(documents)[0]
        if block.kind != "generate_until":
            lists.append(list(block.requests))
    return lists


def _likelihoods(scorer: Scorer, requests: list[list[Request]]) -> np.ndarray:
    responses: list[Response] = []
    for of_task in requests:
        responses += scorer.score(of_task)
    return np.array([response.loglikelihood for response in responses], dtype=np.float64)
