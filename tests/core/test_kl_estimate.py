"""The bound of KL from what servers show is a bound, and sharp where they show everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evalguard.core.shown_tokens import bound_kl

SIZE = 12
logits = st.lists(st.floats(-30.0, 30.0), min_size=SIZE, max_size=SIZE).map(np.array)
shown = st.sets(st.integers(0, SIZE - 1))


def distribution(values: NDArray[np.float64]) -> NDArray[np.float64]:
    values = values - values.max()
    return values - math.log(np.exp(values).sum())


def exact_kl(log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> float:
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def show(logs: NDArray[np.float64], tokens: set[int]) -> dict[str, float]:
    return {f"t{token}": float(logs[token]) for token in sorted(tokens)}


@settings(deadline=None)
@given(logits, logits, shown, shown)
def test_it_is_never_above_the_exact_kl(one, other, ours, theirs) -> None:
    log_p, log_q = distribution(one), distribution(other)
    bound, mass, number = bound_kl((show(log_p, ours),), (show(log_q, theirs),))
    exact = exact_kl(log_p, log_q)
    assert 0.0 <= bound[0] <= exact + 1e-9 * (1.0 + exact)
    both = ours & theirs
    assert number[0] == len(both)
    assert mass[0] == pytest.approx(min(1.0, np.exp(log_p[sorted(both)]).sum()), abs=1e-12)


@settings(deadline=None)
@given(logits, logits, shown)
def test_more_tokens_never_make_it_smaller(one, other, tokens) -> None:
    log_p, log_q = distribution(one), distribution(other)
    found = [
        bound_kl((show(log_p, of),), (show(log_q, of),))[0][0]
        for of in (tokens, tokens | {0}, tokens | {0, 1, 2})
    ]
    # a rest of less than a millionth counts as rounding, which only makes the bound smaller
    slack = 1e-4 + 1e-6 * max(abs(log_p - log_q))
    assert found[0] <= found[1] + slack
    assert found[1] <= found[2] + slack


@settings(deadline=None)
@given(st.lists(st.floats(-4.0, 4.0), min_size=2 * SIZE, max_size=2 * SIZE).map(np.array))
def test_where_all_tokens_are_shown_it_is_the_kl(values) -> None:
    log_p, log_q = distribution(values[:SIZE]), distribution(values[SIZE:])
    everything = set(range(SIZE))
    bound, mass, _ = bound_kl((show(log_p, everything),), (show(log_q, everything),))
    assert bound[0] == pytest.approx(exact_kl(log_p, log_q), abs=1e-9)
    assert mass[0] == pytest.approx(1.0)


@settings(deadline=None)
@given(logits, shown)
def test_a_model_against_itself_has_exactly_nothing(one, tokens) -> None:
    log_p = distribution(one)
    assert bound_kl((show(log_p, tokens),), (show(log_p, tokens),))[0][0] == 0.0


def test_two_tokens_by_hand() -> None:
    base = {"a": math.log(0.5), "b": math.log(0.25)}
    candidate = {"a": math.log(0.25), "c": math.log(0.5)}
    # a alone is shown by both: 0.5 log 2 + 0.5 log(0.5 / 0.75)
    bound, mass, number = bound_kl((base,), (candidate,))
    assert bound[0] == pytest.approx(0.5 * math.log(2.0) + 0.5 * math.log(2.0 / 3.0), abs=1e-15)
    assert (mass[0], number[0]) == (0.5, 1)


@pytest.mark.parametrize("label", ["\ufffd", "a\ufffd", ""])
def test_a_text_that_may_be_any_of_several_tokens_is_left_out(label: str) -> None:
    bound, mass, number = bound_kl(({label: -0.1},), ({label: -3.0},))
    assert (bound[0], mass[0], number[0]) == (0.0, 0.0, 0)


@pytest.mark.parametrize("least", [-9999.0, -math.inf])
def test_a_servers_sign_for_no_probability_is_no_log_probability(least: float) -> None:
    bound, _, number = bound_kl(({"a": -0.5, "b": -1.5},), ({"a": -0.5, "b": least},))
    assert number[0] == 1
    assert bound[0] == 0.0


def test_positions_that_differ_in_number_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 and 2 positions"):
        bound_kl(({},), ({}, {}))


def test_no_positions_give_no_numbers() -> None:
    assert all(column.shape == (0,) for column in bound_kl((), ()))
