"""A Hugging Face model beside a server of the same model: what each has read is compared as it was.

The server is a stub that computes its answers with the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_stubs import ModelStub, serving

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

TEXTS = [
    "mara carried the lantern down to harbour because fog had come in early nobody saw",
    "fog had come in early",
    "nobody saw mara",
]
REQUESTS = {
    "loglikelihood": [
        Request(
            task="t", doc_id=doc, index=0, kind="loglikelihood", arguments=(text, " lantern fog")
        )
        for doc, text in enumerate([*TEXTS, ""])
    ],
    "loglikelihood_rolling": [
        Request(task="t", doc_id=doc, index=0, kind="loglikelihood_rolling", arguments=(text,))
        for doc, text in enumerate(TEXTS)
    ],
}
SCORED = list(REQUESTS)


@pytest.fixture
def scores(tiny_llama: Path) -> Iterator[Callable[..., list[Response]]]:
    """Score requests of a kind by the model, in this process or by a server."""
    with ExitStack() as stack:
        url = stack.enter_context(serving(ModelStub(tokenizer=tiny_llama)))
        served = {
            "base_url": url,
            "model": "served",
            "tokenizer": str(tiny_llama),
            "tokenizer_backend": "huggingface",
            "add_bos_token": True,
        }
        own = {"pretrained": str(tiny_llama), "dtype": "float32", "device": "cpu"}

        def scored(kind: str, where: str, **arguments: Any) -> list[Response]:
            model_type, given = {
                "here": ("hf", own),
                "served": ("local-completions", served),
            }[where]
            policy = ScoringPolicy(batch_size=2)
            lm = load_lm(
                model_type,
                {**given, **arguments},
                {},
                policy,
                trust_remote_code=False,
                allow_pickle=False,
            )
            return LMScorer(lm, policy, model_type=model_type).score(REQUESTS[kind])

        yield scored


@pytest.mark.parametrize("kind", SCORED)
def test_both_read_the_same_tokens_and_score_them_alike(kind: str, scores: Any) -> None:
    ours, theirs = scores(kind, "here"), scores(kind, "served", max_length=50)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_hash == other.token_hash != ""
        assert one.n_tokens == other.n_tokens
        np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, rtol=0, atol=1e-4)
        assert one.is_greedy == other.is_greedy
        assert one.loglikelihood == pytest.approx(other.loglikelihood, abs=1e-4)


@pytest.mark.parametrize("kind", SCORED)
def test_a_cut_text_is_the_same_with_two_tokens_more_for_the_server(kind: str, scores: Any) -> None:
    ours, theirs = scores(kind, "here", max_length=8), scores(kind, "served", max_length=10)
    assert [one.token_hash for one in ours] == [one.token_hash for one in theirs]
    assert [one.n_tokens for one in ours] == [one.n_tokens for one in theirs]
    assert [one.truncated for one in ours] == [one.truncated for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, rtol=0, atol=1e-4)


def test_a_server_that_reads_less_is_seen_by_what_it_read(scores: Any) -> None:
    ours = scores("loglikelihood", "here", max_length=8)
    theirs = scores("loglikelihood", "served", max_length=8)
    assert ours[0].truncated
    assert theirs[0].truncated
    assert ours[0].token_hash != theirs[0].token_hash
    assert ours[0].n_tokens == theirs[0].n_tokens + 2


@pytest.mark.parametrize("kind", SCORED)
def test_bos_that_one_side_reads_is_in_what_was_read(kind: str, scores: Any) -> None:
    ours = scores(kind, "here")
    theirs = scores(kind, "served", max_length=50, add_bos_token=False)
    assert ours[0].token_hash != theirs[0].token_hash
