"""Roots by halving: held to scipy's brentq."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from evalguard.stats.estimate import find_root

BETWEEN = st.floats(min_value=-1.0, max_value=1.0)


@given(at=BETWEEN, curve=st.floats(min_value=0.0, max_value=5.0), falling=st.booleans())
def test_it_is_the_root_that_brentq_finds(at: float, curve: float, falling: bool) -> None:
    def function(x: float) -> float:
        value = (x - at) * (1.0 + curve * x * x)
        return -value if falling else value

    expected = optimize.brentq(function, -1.0, 1.0, xtol=1e-14, rtol=1e-14)
    assert find_root(function, -1.0, 1.0) == pytest.approx(expected, abs=2e-14)


def test_it_is_exact_to_the_last_bit_where_numbers_are_dense() -> None:
    assert find_root(lambda x: x * x - 2.0, 0.0, 2.0) == pytest.approx(math.sqrt(2.0), rel=3e-16)


def test_an_end_may_be_the_root() -> None:
    assert find_root(lambda x: x, 0.0, 1.0) == 0.0
    assert find_root(lambda x: x - 1.0, 0.0, 1.0) == 1.0


def test_one_sign_at_both_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="one sign at both ends"):
        find_root(lambda x: x * x + 1.0, -1.0, 1.0)
