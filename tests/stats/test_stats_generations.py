"""pass@k and mean@k by enumeration and by simulation; answers cut, not found, shorter, equal."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from evalguard.answers.document_figures import pass_at_k, powers_up_to


def by_enumeration(n: int, c: int, k: int) -> float:
    """Share of all choices of k of the n answers that hold one of the c right ones."""
    answers = [1] * c + [0] * (n - c)
    chosen = list(itertools.combinations(answers, k))
    return sum(any(one) for one in chosen) / len(chosen)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, c, k) == pytest.approx(by_enumeration(n, c, k), abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 1, 1), (10, 3, 2), (200, 10, 10), (500, 1, 100)])
def test_pass_at_k_is_the_upper_tail_of_the_hypergeometric_distribution(
    n: int, c: int, k: int
) -> None:
    exact = 1 - math.prod(Fraction(n - c - i, n - i) for i in range(k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-15)
    assert pass_at_k(n, c, k) == pytest.approx(hypergeom(n, c, k).sf(0), abs=1e-12)


@given(
    n=st.integers(1, 300), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), more=st.booleans()
)
def test_pass_at_k_grows_with_k_and_with_right_answers(
    n: int, shares: tuple[float, float], more: bool
) -> None:
    c, k = round(shares[0] * n), max(1, round(shares[1] * n))
    value = pass_at_k(n, c, k)
    assert 0.0 <= value <= 1.0
    assert pass_at_k(n, c, 1) == pytest.approx(c / n, abs=1e-15)
    if k < n:
        assert pass_at_k(n, c, k + 1) >= value
    if c < n:
        assert pass_at_k(n, c + 1, k) >= value
    assert (value == 1.0) == (n - c < k) or n > 50


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0)])
def test_pass_at_more_than_there_are_does_not_exist(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        pass_at_k(n, c, k)


def test_k_goes_in_powers_of_two_up_to_the_number_of_answers() -> None:
    assert [powers_up_to(n) for n in (1, 2, 3, 4, 10, 64)] == [
        [], [2], [2, 3], [2, 4], [2, 4, 8, 10], [2, 4, 8, 16, 32, 64],
    ]  # fmt: skip


def test_pass_at_k_is_unbiased_where_the_plug_in_is_not() -> None:
    n, k, p = 10, 5, 0.15
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    unbiased = sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights))
    plug_in = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights))
    assert unbiased == pytest.approx(truth, abs=1e-12)
    assert abs(plug_in - truth) > 0.02
