"""The batch-size check: does a model score a document the same alone and in a batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evalguard.harness import Block
from evalguard.pipeline.choices import Choices
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.open_scorer import open_scorer
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Response, Scorer


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
    answers = []
    for size in (choices.policy.batch_size, 1):
        policy = replace(choices.policy, batch_size=size)
        scorer = open_scorer(source.variant, policy, options, cache_dir=cache_dir)
        try:
            blocks = evaluator.first_blocks(scorer, options.check_batch_size)
            answers.append(_likelihoods(scorer, blocks))
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


def _likelihoods(scorer: Scorer, blocks: Sequence[Block]) -> np.ndarray:
    responses: list[Response] = []
    for block in blocks:
        if block.kind != "generate_until":
            responses += scorer.score(block.requests)
    return np.array([response.loglikelihood for response in responses], dtype=np.float64)
