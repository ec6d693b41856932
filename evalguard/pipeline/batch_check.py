"""The batch-size check: does a model score a document the same alone and in a batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evalguard.harness import Block
from evalguard.pipeline.bench import Bench
from evalguard.pipeline.sources import ModelSource
from evalguard.scorer import Response, Scorer, ScoringPolicy


def check_batch_size(source: ModelSource, bench: Bench) -> str:
    """Score the first documents of every task in batches and one by one.

    Returns:
        One sentence with the largest and the mean difference in natural-log likelihood.
    """
    usual = bench.choices.policy
    answers = []
    for policy, name in (
        (usual, f"{source.name} to check its batch size"),
        (replace(usual, batch_size=1), f"{source.name} at batch size 1"),
    ):
        scorer = bench.load(replace(source, name=name, policy=policy))
        try:
            blocks = bench.evaluator.first_blocks(scorer, bench.options.check_batch_size)
            answers.append(_likelihoods(scorer, blocks))
        finally:
            scorer.close()
    together, alone = answers
    difference = together - alone
    if difference.size == 0:
        return "no likelihood requests, so the batch size was not checked"
    return (
        f"{_batches(usual)} against batch size 1 on {difference.size:,} requests: "
        f"largest difference {np.abs(difference).max():.2g} nats, mean {difference.mean():.2g}"
    )


def _batches(policy: ScoringPolicy) -> str:
    if policy.batch_size is None:
        return "batches by tokens"
    return f"batch size {policy.batch_size}"


def _likelihoods(scorer: Scorer, blocks: Sequence[Block]) -> np.ndarray:
    responses: list[Response] = []
    for block in blocks:
        if block.kind != "generate_until":
            responses += scorer.score(block.requests)
    return np.array([response.loglikelihood for response in responses], dtype=np.float64)
