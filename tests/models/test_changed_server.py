"""A server that became another one is told from one that varies: by prompts asked once more."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from evalguard.core.scorer import Response
from evalguard.models.served.changed_server import AnswerChange, find_change

PROMPTS, TOKENS = 24, 12


def numbers(seed: int = 0, noise: float = 0.0, prompts: int = PROMPTS) -> list[Response]:
    """Log-probabilities of prompts, and what rounding adds to them."""
    told = -np.random.default_rng(0).exponential(2.0, (prompts, TOKENS))
    told += noise * np.random.default_rng(seed).standard_normal(told.shape)
    return [Response(loglikelihood=float(one.sum()), token_logprobs=one) for one in told]


def texts(
    seed: int = 0, turned: float = 0.0, words: int = 40, prompts: int = PROMPTS
) -> list[Response]:
    """Answers of many words; of some, rounding has turned one."""
    random = np.random.default_rng(seed)
    found = []
    for prompt in range(prompts):
        answer = [f"w{prompt * 7 + n}" for n in range(words)]
        if random.random() < turned:
            answer[-1] = f"other{random.integers(1000)}"
        found.append(Response(text=" ".join(answer)))
    return found


def changed(
    before: Sequence[Response],
    again: Sequence[Response],
    third: Sequence[Response],
    spread: float = 0.0,
) -> AnswerChange | None:
    return find_change(before, again, lambda: third, spread=spread)


@pytest.mark.parametrize("noise", [0.0, 1e-5, 0.01, 0.05])
@pytest.mark.parametrize("prompts", [1, 4, 24])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_no_change(noise: float, prompts: int, seed: int) -> None:
    asked = [numbers(3 * seed + one, noise, prompts) for one in range(3)]
    assert changed(asked[0], asked[1], asked[2]) is None


def test_a_server_of_noise_is_held_to_what_it_shows() -> None:
    asked = [numbers(one, 0.15) for one in range(3)]
    assert changed(asked[0], asked[1], asked[2]) is None
    quantised = numbers(9, 0.15)
    assert changed(asked[0], quantised, quantised) is not None, "it repeats itself, and not before"


def test_another_quantisation_and_another_model_are_changes() -> None:
    other = numbers(1, 0.12)
    found = changed(numbers(), other, other)
    assert found is not None
    assert found.nats_per_token == pytest.approx(0.096, abs=0.02)
    worse = numbers(1, 3.0)
    assert changed(numbers(prompts=2), worse[:2], worse[:2]) is not None


def test_minus_infinity_is_itself_and_other_numbers_of_tokens_are_another_model() -> None:
    one = [Response(loglikelihood=-np.inf, token_logprobs=np.array([-1.0, -np.inf]))] * 4
    assert changed(one, one, one) is None
    longer = [Response(loglikelihood=-1.0, token_logprobs=np.zeros(3))] * 4
    assert changed(one, longer, longer) is not None


@pytest.mark.parametrize("turned", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_ties_that_rounding_decides_are_no_change(turned: float, seed: int) -> None:
    asked = [texts(3 * seed + one, turned, words=150) for one in range(3)]
    assert changed(asked[0], asked[1], asked[2]) is None


def test_other_texts_are_a_change_also_of_few_short_ones() -> None:
    other = texts(1, 1.0)
    found = changed(texts(), other, other)
    assert found is not None
    assert (found.texts, found.prompts) == (PROMPTS, PROMPTS)
    few = texts(1, 1.0, words=1, prompts=4)
    assert changed(texts(words=1, prompts=4), few, few) is not None


def test_a_server_that_samples_is_not_taken_for_another_one() -> None:
    asked = [texts(one, 1.0) for one in range(3)]
    assert changed(asked[0], asked[1], asked[2]) is None


def test_what_comes_beside_a_text_counts_but_for_ids_that_are_drawn() -> None:
    def calling(name: str, number: int) -> list[Response]:
        call = {"id": f"call_{number}", "function": {"name": name, "arguments": "{}"}}
        return [Response(text="", message=json.dumps({"tool_calls": [call]}))] * 12

    assert changed(calling("read", 1), calling("read", 2), calling("read", 3)) is None
    assert changed(calling("read", 1), calling("write", 2), calling("write", 3)) is not None


def test_nothing_is_asked_a_third_time_where_answers_are_alike() -> None:
    def refuse() -> list[Response]:
        raise AssertionError("asked a third time")

    assert find_change(numbers(), numbers(1, 0.01), refuse, spread=0.0) is None
    assert find_change(texts(), texts(), refuse, spread=0.0) is None
