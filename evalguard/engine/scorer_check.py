"""The scorer check: does lm-eval's own path give the scores that this run has?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from evalguard.core.scorer import Request, Response
from evalguard.engine.loading.own_environment import is_runtime
from evalguard.engine.run_context import RunContext
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError
from evalguard.models.arguments import HF_TYPES

# What float32 may leave of a document's log-likelihood, and of each nat of it: lm-eval adds up the
# tokens of a long text in float32.
_ABSOLUTE, _RELATIVE = 1e-4, 1e-6
# The largest difference of a few documents scatters: what one other path does may well come out so
# much larger than what another one does.
_TIMES_NOISE = 4.0
_NOT_VERIFIED = (
    "{task}: its scores were not verified: rolling_bos once reads whole texts otherwise than "
    "lm-eval's own path"
)
RequestKey = tuple[str, int, int]
ResponsesByRequest = Mapping[RequestKey, Response]


def check_scorer(source: ModelSource, context: RunContext) -> tuple[str, ...]:
    """Score the documents that were set aside once more, by lm-eval's own path.

    Returns:
        One sentence per task, with the largest difference in natural-log likelihood.

    Raises:
        EvaluationError: a difference is more than rounding.
    """
    if is_runtime(source.variant):
        return (f"{source.name} is not scored again: lm-eval's own path does not load it",)
    if source.variant.model not in HF_TYPES:
        return (f"model type '{source.variant.model}' is scored by lm-eval's own path alone",)
    if context.choices.policy.scorer == "harness":
        return ("scored by lm-eval's own path, which nothing was held against",)
    policy = source.policy or context.choices.policy
    unlike = {"generate_until"}
    if policy.rolling_bos == "once":
        unlike.add("loglikelihood_rolling")
    checked = {
        task: [p for p in pairs if p[0].kind not in unlike]
        for (model, task), pairs in context.executor.scoring.aside.items()
        if model == source.name
    }
    whole = {
        task
        for (model, task), pairs in context.executor.scoring.aside.items()
        if model == source.name and any(r.kind == "loglikelihood_rolling" for r, _ in pairs)
    }
    asked = [request for pairs in checked.values() for request, _ in pairs]
    again = _score_by_harness(source, context, asked)
    ours = {
        _request_key(request): response for pairs in checked.values() for request, response in pairs
    }
    differences = {
        task: _compare_responses([r for r, _ in pairs], ours, again)
        for task, pairs in checked.items()
    }
    noise = _compare_responses([], ours, again)
    if not all(difference.rounding and not difference.flips for difference in differences.values()):
        # in a narrow dtype: what other batches do to lm-eval's own path
        noise = _compare_responses(
            asked, _score_by_harness(source, context, asked, batch_size=1), again
        )
    return tuple(
        _NOT_VERIFIED.format(task=task)
        if task in whole and policy.rolling_bos == "once"
        else _difference_text(source.name, task, difference, noise)
        for task, difference in differences.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Two paths' answers: the ``largest`` difference, and whether float32 rounding explains it."""

    documents: int
    largest: float
    rounding: bool
    flips: int


def _compare_responses(
    asked: Sequence[Request], ours: ResponsesByRequest, theirs: ResponsesByRequest
) -> _Difference:
    pairs = [(ours[_request_key(request)], theirs[_request_key(request)]) for request in asked]
    own_values, other_values = (
        np.array([answer.loglikelihood for answer in side], dtype=np.float64)
        for side in ([first for first, _ in pairs], [second for _, second in pairs])
    )
    same = (own_values == other_values) | (np.isnan(own_values) & np.isnan(other_values))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(own_values - other_values))
        allowed = _ABSOLUTE + _RELATIVE * np.abs(other_values)
    return _Difference(
        documents=len({(request.task, request.doc_id) for request in asked}),
        largest=float(apart.max(initial=0.0)),
        rounding=bool((same | (apart <= allowed)).all()),
        flips=sum(first.is_greedy != second.is_greedy for first, second in pairs),
    )


def _difference_text(model: str, task: str, found: _Difference, noise: _Difference) -> str:
    if not found.documents:
        return f"{task} has no likelihood requests, so that its scores were not verified"
    greedy = f"greedy answers that differ: {found.flips}" if found.flips else "greedy answers agree"
    text = (
        f"{task}: {found.documents} documents scored again by lm-eval's own path: largest "
        f"difference {found.largest:.2g} nats, {greedy}"
    )
    if found.rounding and not found.flips:
        return text
    # Where rounding moves scores, it may turn the one or other greedy answer that was a near tie.
    ties = max(noise.flips, 0 if found.rounding else 1)
    moved = f"{noise.largest:.2g} nats and {noise.flips} greedy answers"
    scores_agree = found.rounding or found.largest <= _TIMES_NOISE * noise.largest
    if scores_agree and found.flips <= _TIMES_NOISE * ties:
        return f"{text}; other batches alone move that path's by {moved}"
    raise EvaluationError(
        f"{model} has other scores than lm-eval's own path gives: {text}; float32 allows "
        f"{_ABSOLUTE:g}, and other batches move that path's by {moved}",
        hint="--scorer harness scores by that path; please report the model",
    )


def _score_by_harness(
    source: ModelSource,
    context: RunContext,
    asked: Sequence[Request],
    batch_size: int | None = None,
) -> ResponsesByRequest:
    """Answers of lm-eval's own path, one kind of request of one task after the other."""
    if not asked:
        return {}
    usual = source.policy or context.choices.policy
    policy = replace(usual, scorer="harness", batch_size=batch_size or usual.batch_size)
    scorer = context.load_apart(replace(source, name=f"{source.name} to verify", policy=policy))
    answered: dict[RequestKey, Response] = {}
    try:
        ordered = sorted(asked, key=lambda request: (request.task, request.kind))
        for _, group in groupby(ordered, key=lambda request: (request.task, request.kind)):
            requests = list(group)
            answers = scorer.score(requests)
            answered |= {
                _request_key(r): answer for r, answer in zip(requests, answers, strict=True)
            }
    finally:
        scorer.close()
    return answered


def _request_key(request: Request) -> RequestKey:
    return request.task, request.doc_id, request.index
