"""Minus infinity, however a server spells it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.scores import (
    estimate_tokens,
    restore_infinities,
    restore_infinity,
    restore_token_infinities,
)

FLOAT32, BFLOAT16, HALF = -3.4028234663852886e38, -3.3895313892515355e38, -65504.0
SPELLINGS = (-9999.0, HALF, BFLOAT16, FLOAT32, -math.inf)


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_every_documented_spelling_of_a_token_is_minus_infinity(spelled: float) -> None:
    tokens = [-0.5, spelled, -2.25]
    assert restore_infinity(sum(tokens), token_logprobs=tokens) == -math.inf
    restored = restore_token_infinities(np.array(tokens))
    assert restored.tolist() == [-0.5, -math.inf, -2.25]


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_in_a_sum_over_a_short_text_it_shows_without_the_tokens(spelled: float) -> None:
    assert restore_infinity(spelled - 7.5, text=" yesterday evening") == -math.inf


def test_a_long_text_may_have_any_sum() -> None:
    text = "word " * 3_000
    assert restore_infinity(-12_000.0, text=text) == -12_000.0
    assert restore_infinity(-12_000.0, token_logprobs=[-3.0] * 4_000) == -12_000.0


def test_of_an_unknown_text_only_the_spellings_themselves_are_known() -> None:
    assert restore_infinity(-12_000.0) == -12_000.0
    for spelled in (-9999.0, BFLOAT16, FLOAT32, -math.inf):
        assert restore_infinity(spelled) == -math.inf


def test_a_number_that_is_none_stays_none() -> None:
    assert math.isnan(restore_infinity(math.nan, text=" x"))


@given(st.floats(-9998.0, 0.0), st.text(max_size=50))
def test_a_log_likelihood_that_a_model_can_have_stays_what_it_is(value: float, text: str) -> None:
    assert restore_infinity(value, text=text) == value


@given(st.text())
def test_a_text_has_a_token_and_at_most_one_a_byte(text: str) -> None:
    count = estimate_tokens(text)
    assert 1 <= count <= max(1, len(text.encode("utf-8", "surrogatepass")))


def test_values_are_restored_each_by_its_text() -> None:
    values = np.array([-1.0, -10_003.0, -10_003.0, math.nan])
    found = restore_infinities(values, [" a", " b", "c" * 40_000, None])
    assert found[:3].tolist() == [-1.0, -math.inf, -10_003.0]
    assert math.isnan(found[3])
    assert values[1] == -10_003.0
