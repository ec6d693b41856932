from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.stats.binary import mcnemar_exact
from evalguard.stats.sign_flip import sign_flip

DIFFERENCES = arrays(np.float64, st.integers(1, 12), elements=st.floats(-4, 4, width=16))


@given(DIFFERENCES)
def test_up_to_20_differences_every_sign_pattern_is_counted(d):
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(d))))
    naive = np.mean(signs @ d >= d.sum() - 1e-9)
    test = sign_flip(d)
    assert test.p_value == pytest.approx(naive, abs=1e-12)
    assert (test.resamples, test.seed) == (None, None)


def test_it_agrees_with_scipy_over_all_patterns():
    d = np.random.default_rng(3).normal(0.3, 1.0, 13)
    theirs = scipy.stats.permutation_test(
        (d,), np.sum, permutation_type="samples", alternative="greater", n_resamples=np.inf
    )
    assert sign_flip(d).p_value == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize("n", [21, 64, 500])
def test_random_patterns_agree_with_scipy_within_their_error(n):
    d = np.random.default_rng(n).normal(2.0 / math.sqrt(n), 1.0, n)
    theirs = scipy.stats.permutation_test(
        (d,),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=9_999,
        vectorized=True,
        rng=np.random.default_rng(1),
    )
    ours = sign_flip(d)
    assert ours.resamples == 9_999
    error = math.sqrt(2.0 * theirs.pvalue * (1.0 - theirs.pvalue) / 9_999)
    assert abs(ours.p_value - theirs.pvalue) <= 4.0 * error


@pytest.mark.parametrize(("b", "c"), [(3, 1), (9, 11), (0, 6)])
def test_flips_of_0_1_answers_give_the_exact_mcnemar_test(b, c):
    d = np.array([1.0] * b + [-1.0] * c + [0.0] * 30)
    assert sign_flip(d).p_value == pytest.approx(mcnemar_exact(b, c), abs=1e-12)


def test_a_document_without_a_difference_changes_nothing():
    d = np.random.default_rng(5).normal(0.2, 1.0, 300)
    assert sign_flip(np.concatenate([d, np.zeros(50)])) == sign_flip(d)


@given(DIFFERENCES.map(lambda d: np.tile(np.abs(d), 3)), st.randoms(use_true_random=False))
def test_the_order_of_documents_changes_nothing(d, random):
    d = d * np.where(d > 1.0, 1.0, -1.0)  # one sign for each size
    order = list(range(len(d)))
    random.shuffle(order)
    assert sign_flip(d[order], resamples=99) == sign_flip(d, resamples=99)


@pytest.mark.parametrize("ties", [False, True])
def test_the_luck_of_one_seed_does_not_move_the_size(ties):
    # sorted by sign, normal ones: 0.4% rejected with the default seed, 1.4% to 4.6% with others
    rng = np.random.default_rng(5)
    runs, level = 2_000, 0.025
    draws = rng.integers(0, 2, (runs, 60)) * 2.0 - 1.0 if ties else rng.normal(size=(runs, 60))
    p_values = np.array([sign_flip(d, resamples=199).p_value for d in draws])
    expected = stats_of_signs(60, level) if ties else level
    assert abs(np.mean(p_values <= level) - expected) <= 3.5 * math.sqrt(level / runs)


def stats_of_signs(n, level):
    """Size of the test over 199 random patterns where all differences have one size."""
    at_least = scipy.stats.binom.sf(np.arange(-1, n), n, 0.5)
    chance = scipy.stats.binom.pmf(np.arange(n + 1), n, 0.5)
    most = round(level * 200) - 1
    return float(np.sum(chance * scipy.stats.binom.cdf(most, 199, at_least)))


def test_the_same_seed_gives_the_same_p_value_and_another_one_nearly_so():
    d = np.random.default_rng(8).normal(0.05, 1.0, 400)
    assert sign_flip(d) == sign_flip(d)
    other = sign_flip(d, seed=1)
    assert other.seed == 1
    assert other.p_value == pytest.approx(sign_flip(d).p_value, abs=0.03)


def test_no_random_pattern_makes_a_p_value_of_zero():
    assert sign_flip(np.ones(100), resamples=199).p_value == 1 / 200


def test_differences_of_any_size_are_summed_without_overflow():
    assert sign_flip(np.full(40, 1e150), resamples=99).p_value == 1 / 100


@pytest.mark.parametrize("n", [12, 60])
def test_it_keeps_its_size_where_the_differences_are_symmetric_with_heavy_tails(n):
    rng = np.random.default_rng(n)
    runs = 1_000
    rejected = np.mean(
        [sign_flip(rng.standard_t(1.5, n), resamples=199).p_value <= 0.05 for _ in range(runs)]
    )
    assert rejected <= 0.055 + 2.0 * math.sqrt(0.05 * 0.95 / runs)
