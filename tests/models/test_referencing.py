"""A base scored on its own leaves a reference; a candidate is compared with it later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lm_requests import pair_requests, rolling_requests
from opened_models import open_hf
from test_lockstep import bits, compared, nudged

from evalguard.core.scorer import DistributionScorer

TASKS = {"choice": pair_requests, "text": rolling_requests}


@pytest.fixture(scope="module")
def far(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nudged(tiny_llama, tmp_path_factory.mktemp("far") / "model", by=1.2)


@pytest.mark.parametrize("task", TASKS)
def test_a_reference_of_the_whole_vocabulary_is_lock_step(
    task: str, tiny_llama: Path, far: Path
) -> None:
    base: DistributionScorer = open_hf(tiny_llama)
    candidate: DistributionScorer = open_hf(far)
    requests = TASKS[task]()
    responses, references = base.score_reference(requests, top_k=10_000, samples=1)
    answers, found = candidate.score_against(requests, references)
    _, _, exact = compared(open_hf(tiny_llama), open_hf(far), requests)
    assert found.reason == ""
    for one, two in zip(found.divergences, exact.divergences, strict=True):
        if one is None or two is None:
            assert one is two
            continue
        assert one.kl_low is None
        np.testing.assert_allclose(one.kl, two.kl, atol=1e-9)
        for name in ("token_ids", "base_logprobs", "candidate_logprobs", "base_top", "shared_top"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert bits(responses) == bits(open_hf(tiny_llama).score(requests))
    assert bits(answers) == bits(open_hf(far).score(requests))


@pytest.mark.parametrize("top_k", [1, 64])
@pytest.mark.parametrize("task", TASKS)
def test_a_small_reference_brackets_the_exact_divergence_at_every_position(
    task: str, top_k: int, tiny_llama: Path, far: Path
) -> None:
    requests = TASKS[task]()
    _, references = open_hf(tiny_llama).score_reference(requests, top_k=top_k, samples=8)
    _, found = open_hf(far).score_against(requests, references)
    _, _, exact = compared(open_hf(tiny_llama), open_hf(far), requests)
    for one, two in zip(found.divergences, exact.divergences, strict=True):
        if one is not None and two is not None:
            assert one.kl_low is not None
            assert one.kl_high is not None
            assert (one.kl_low <= two.kl).all()
            assert (two.kl <= one.kl_high).all()


def test_the_draws_depend_on_the_text_alone(tiny_llama: Path) -> None:
    requests = rolling_requests()
    model = open_hf(tiny_llama)
    whole = model.score_reference(requests, top_k=4, samples=4)[1]
    alone = model.score_reference(requests[:1], top_k=4, samples=4)[1]
    assert whole[0] is not None
    assert alone[0] is not None
    np.testing.assert_array_equal(whole[0].sample_ids, alone[0].sample_ids)


def test_other_tokens_than_the_references_are_not_compared_and_still_scored(
    tiny_llama: Path, far: Path
) -> None:
    requests = rolling_requests()
    _, references = open_hf(tiny_llama).score_reference(requests, top_k=4, samples=4)
    others = rolling_requests(["Another text."] * len(requests))
    answers, found = open_hf(far).score_against(others, references)
    assert "score other tokens" in found.reason
    assert bits(answers) == bits(open_hf(far).score(others))


def test_a_reference_serves_windows_of_another_length(tiny_llama: Path, far: Path) -> None:
    requests = rolling_requests()
    _, references = open_hf(tiny_llama).score_reference(requests, top_k=4, samples=4)
    _, found = open_hf(far, max_length=20).score_against(requests, references)
    assert found.reason == ""
    assert all(d is None or d.positions for d in found.divergences)
