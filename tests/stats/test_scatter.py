"""Ranges of a pilot hold the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from evalguard.stats.power import expected_total
from evalguard.stats.scatter import kurtosis, ratio_range, scatter_factors, share_interval

RUNS = 2000


def test_kurtosis_is_scipys():
    values = np.random.default_rng(0).standard_t(5, size=200)
    centred = values - values.mean()
    assert kurtosis(centred) == pytest.approx(scipy_stats.kurtosis(values, fisher=False), rel=1e-12)
    assert kurtosis(np.zeros(5)) == 3.0


def test_the_interval_of_normal_scatter_is_the_chi_square_interval():
    low, high = scatter_factors(64, kurtosis=3.0, confidence=0.95)
    assert low == pytest.approx(math.sqrt(63 / scipy_stats.chi2.ppf(0.975, 63)), rel=1e-12)
    assert high == pytest.approx(math.sqrt(63 / scipy_stats.chi2.ppf(0.025, 63)), rel=1e-12)
    assert (round(low, 2), round(high, 2)) == (0.85, 1.21)


@pytest.mark.parametrize(
    ("draw", "truth", "least"),
    [
        (lambda rng, size: rng.normal(size=size), 1.0, 0.93),
        (lambda rng, size: rng.uniform(size=size), math.sqrt(1 / 12), 0.93),
        # a pilot of 64 cannot know a heavy tail: stated in docs/plan.md
        (lambda rng, size: rng.laplace(size=size), math.sqrt(2), 0.87),
        (lambda rng, size: rng.standard_t(4, size=size), math.sqrt(2), 0.82),
    ],
)
def test_the_interval_of_a_scatter_holds_the_truth(draw, truth, least):
    runs = draw(np.random.default_rng(4), (RUNS, 64))
    held = 0
    for values in runs:
        sd = values.std(ddof=1)
        factors = scatter_factors(64, kurtosis=kurtosis(values - values.mean()), confidence=0.95)
        held += sd * factors[0] <= truth <= sd * factors[1]
    assert held / RUNS >= least


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_the_range_of_a_ratio_holds_the_truth(shared):
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(RUNS):
        base = rng.normal(size=64)
        d = 0.1 * (shared * base + math.sqrt(1 - shared**2) * rng.normal(size=64))
        factors = scatter_factors(64, kurtosis=3.0, confidence=0.95)
        low, high = ratio_range(d.std(ddof=1) / base.std(ddof=1), factors, factors)
        held += low <= 0.1 <= high
    assert held / RUNS >= 0.935


@pytest.mark.parametrize(("count", "n"), [(0, 64), (3, 64), (64, 64), (500, 5153)])
def test_the_interval_of_a_share_is_scipys_exact_one(count, n):
    exact = scipy_stats.binomtest(count, n).proportion_ci(method="exact")
    assert share_interval(count, n, confidence=0.95) == pytest.approx(tuple(exact), abs=1e-12)


def test_an_open_interval_leaves_the_ratio_open():
    low, high = ratio_range(1.0, (0.5, math.inf), (0.9, 1.1))
    assert 0.0 < low < 1.0
    assert high == math.inf


def test_expected_totals_hold_the_truth_and_are_exact_for_all_documents():
    rng = np.random.default_rng(6)
    lengths = np.round(rng.gamma(3.0, 20.0, size=1000)) + 1.0
    held = 0
    for _ in range(RUNS):
        sample = rng.choice(lengths, size=64, replace=False)
        _, low, high = expected_total(sample, 1000)
        held += low <= lengths.sum() <= high
    assert held / RUNS == pytest.approx(0.95, abs=0.02)
    assert expected_total(lengths, 1000) == (lengths.sum(),) * 3
    assert expected_total(np.array([7.0]), 3) == (21.0, 7.0, math.inf)
