"""The budget: the smallest that reads about as fast as any, and none that takes too long to try."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_models import POLICY, open_hf
from small_memory import with_memory_for

from evalguard.models.hf.budget_search import (
    BudgetSearch,
    describe_budget_conditions,
    find_fastest_budget,
    measure_token_budget,
)

SEARCH = BudgetSearch(first=512, last=8192)


@pytest.mark.parametrize(
    ("per_pass", "expected"),
    [(0.0, 512), (0.2e-3, 1024), (16e-3, 8192)],
)
def test_what_a_pass_costs_beside_its_tokens_makes_budgets_larger(
    per_pass: float, expected: int
) -> None:
    assert find_fastest_budget(lambda n: per_pass + n / 500_000, SEARCH) == expected


def test_larger_batches_that_are_slower_are_not_taken() -> None:
    times = {64: 0.001, 512: 0.010, 1024: 0.015, 2048: 0.040, 4096: 0.080, 8192: 0.160}
    assert find_fastest_budget(lambda n: times[n], SEARCH) == 1024


def test_a_little_faster_is_not_worth_the_padding() -> None:
    assert (
        find_fastest_budget(
            lambda n: n / (1000 if n < 1024 else 1030), replace(SEARCH, seconds=1e9)
        )
        == 512
    )


def test_a_slow_model_is_not_timed_for_long() -> None:
    asked: list[int] = []

    def seconds(tokens: int) -> float:
        asked.append(tokens)
        return tokens / 50

    assert find_fastest_budget(seconds, SEARCH) == 512
    assert asked == [64]


def test_what_has_no_room_is_not_taken() -> None:
    assert find_fastest_budget(lambda n: None if n > 1024 else 0.01, SEARCH) == 1024
    assert find_fastest_budget(lambda _: None, SEARCH) == 512


@given(st.dictionaries(st.sampled_from([512, 1024, 2048, 4096, 8192]), st.floats(1e-4, 10)))
def test_whatever_the_times_it_is_one_of_those_tried(times: dict[int, float]) -> None:
    assert find_fastest_budget(lambda n: times.get(n), SEARCH) in {512, *times}


def test_a_loaded_model_is_measured_and_scores_as_before(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, replace(POLICY, batch_size=None))
    search = BudgetSearch(first=512, last=4096)
    assert measure_token_budget(model.lm, search) in (512, 1024, 2048, 4096)
    with_memory_for(model, 700)
    assert measure_token_budget(model.lm, search) == 512


def test_facts_tell_models_and_dtypes_apart(tiny_llama: Path, tiny_gemma2: Path) -> None:
    found = [
        describe_budget_conditions(open_hf(folder, dtype=dtype).lm)
        for folder in (tiny_llama, tiny_gemma2)
        for dtype in ("float32", "bfloat16")
    ]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found[0] == describe_budget_conditions(open_hf(tiny_llama).lm)
