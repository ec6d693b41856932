"""Where memory runs out batches are halved, which is said, and changes no score beyond rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lm_requests import pair_requests, rolling_requests
from opened_models import POLICY, open_hf
from small_memory import EXHAUSTED, with_memory_for
from test_lockstep import bits, compared

from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.lm_scorer import LMScorer

BY_TOKENS = replace(POLICY, batch_size=None, token_budget=1024, share_prefixes=False)


def likelihoods(scorer: LMScorer) -> list[float | None]:
    return [answer.loglikelihood for answer in scorer.score(rolling_requests())]


@pytest.mark.parametrize("error", EXHAUSTED, ids=lambda error: type(error).__name__)
def test_batches_are_halved_until_there_is_room(tiny_llama: Path, error: BaseException) -> None:
    expected = likelihoods(open_hf(tiny_llama, BY_TOKENS))
    model = open_hf(tiny_llama, BY_TOKENS)
    before = model.describe()
    passed = with_memory_for(model, 100, error)
    assert likelihoods(model) == pytest.approx(expected, abs=1e-4)
    after = model.describe()
    budget = after.computation["token_budget"]
    assert isinstance(budget, int)
    assert 25 <= budget <= 100
    assert max(passed) <= 100
    assert any(c.startswith("memory ran out: batches were halved") for c in after.caveats)
    assert not any(c.startswith("memory ran out") for c in before.caveats)
    assert after.identity != before.identity
    assert after.identity is not None
    assert after.identity["policy"]["token_budget"] == budget  # type: ignore[index,call-overload]


def test_what_comes_after_is_scored_as_if_the_budget_had_been_so_small(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, BY_TOKENS)
    with_memory_for(model, 100)
    found = model.score(rolling_requests())
    budget = int(str(model.describe().computation["token_budget"]))
    small = open_hf(tiny_llama, replace(BY_TOKENS, token_budget=budget))
    assert bits(found) == bits(small.score(rolling_requests()))
    assert small.describe().identity == model.describe().identity


def test_a_number_of_sequences_is_halved_too(tiny_llama: Path) -> None:
    policy = replace(POLICY, batch_size=8, share_prefixes=False)
    expected = likelihoods(open_hf(tiny_llama, policy))
    model = open_hf(tiny_llama, policy)
    with_memory_for(model, 150)
    assert likelihoods(model) == pytest.approx(expected, abs=1e-4)
    assert model.describe().computation["batch_size"] == 3


def test_one_sequence_that_has_no_room_is_an_error(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, BY_TOKENS)
    with_memory_for(model, 10)
    with pytest.raises(EvaluationError, match=r"(?s)in loglikelihood_rolling of text:.*allocate"):
        model.score(rolling_requests())


@pytest.mark.parametrize("side", [0, 1])
def test_in_lock_step_both_models_take_the_smaller_batches(tiny_llama: Path, side: int) -> None:
    requests = rolling_requests()
    models = [open_hf(tiny_llama, BY_TOKENS) for _ in range(2)]
    expected = compared(models[0], models[1], requests)
    short = [open_hf(tiny_llama, BY_TOKENS) for _ in range(2)]
    with_memory_for(short[side], 100)
    base, candidate, found = compared(short[0], short[1], requests)
    budgets = {model.describe().computation["token_budget"] for model in short}
    assert len(budgets) == 1
    assert max(int(str(budget)) for budget in budgets) <= 100
    assert bits(base) == bits(candidate) == bits(short[1 - side].score(requests))
    assert found.reason == ""
    assert [a.loglikelihood for a in base] == pytest.approx(
        [a.loglikelihood for a in expected[0]], abs=1e-4
    )


def test_a_reference_is_made_and_met_with_smaller_batches(tiny_llama: Path) -> None:
    base, candidate = open_hf(tiny_llama, BY_TOKENS), open_hf(tiny_llama, BY_TOKENS)
    with_memory_for(base, 100)
    with_memory_for(candidate, 50)
    requests = rolling_requests()
    responses, references = base.score_reference(requests, top_k=8, samples=1)
    answers, found = candidate.score_against(requests, references)
    assert found.reason == ""
    assert [a.loglikelihood for a in answers] == pytest.approx(
        [a.loglikelihood for a in responses], abs=1e-4
    )
    assert int(str(candidate.describe().computation["token_budget"])) <= 50


def test_trees_are_halved_too(tiny_llama: Path) -> None:
    policy = replace(BY_TOKENS, share_prefixes=True)
    expected = [a.loglikelihood for a in open_hf(tiny_llama, policy).score(pair_requests())]
    model = open_hf(tiny_llama, policy)
    with_memory_for(model, 64)
    found = [a.loglikelihood for a in model.score(pair_requests())]
    assert found == pytest.approx(expected, abs=1e-4)
    assert int(str(model.describe().computation["token_budget"])) <= 64


def test_one_tree_that_has_no_room_is_given_up_for_plain_batches(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, replace(BY_TOKENS, share_prefixes=True))
    with_memory_for(model, 23)  # of one sequence, and not of two that share it
    with pytest.raises(FallbackError, match="memory ran out on one tree of prefixes") as raised:
        model.score(pair_requests()[12:16])
    assert raised.value.giving_up == "share_prefixes"


def test_another_failure_is_none_of_memory(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, BY_TOKENS)
    with_memory_for(model, 100, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(EvaluationError, match="shapes cannot be multiplied"):
        model.score(rolling_requests())
    assert model.describe().computation["token_budget"] == 1024


def test_a_model_that_has_no_room_for_the_few_tokens_it_is_tried_on_says_so(
    tiny_llama: Path,
) -> None:
    policy = replace(BY_TOKENS, share_prefixes=True)
    model = open_hf(tiny_llama, policy)
    with_memory_for(model, 1)
    with pytest.raises(EvaluationError, match="memory ran out in reading a few tokens: Runtime"):
        LMScorer(model.lm, policy, model_type="hf")
