"""Effective sample sizes: intervals of shares and percentiles of positions within documents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evalguard.stats.effective_sample import Share, rank_limits


def share(hits: list[float], positions: list[float]) -> Share:
    return Share(hits=np.array(hits, dtype=float), positions=np.array(positions, dtype=float))


def test_documents_of_one_position_give_the_exact_binomial_interval():
    """Clopper and Pearson's, as scipy has it, but for V with n - 1 and few misses' degrees."""
    hits = np.array([1.0] * 900 + [0.0] * 100)
    found = Share(hits=hits, positions=np.ones(1000))
    assert found.value == 0.9
    n = found.effective(confidence=0.95)
    assert 900.0 < n <= 1000.0
    exact = stats.binomtest(900, 1000).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(found.interval(confidence=0.95), exact, atol=0.002)


def test_positions_that_agree_within_their_document_count_once():
    """Ten documents of 50 positions, all right or all wrong: 10 observations, not 500."""
    found = share([50.0] * 5 + [0.0] * 5, [50.0] * 10)
    assert 5.0 < found.effective(confidence=0.95) <= 10.0


def test_without_any_miss_the_documents_count_and_not_the_positions():
    found = share([50.0] * 100, [50.0] * 100)
    assert found.effective(confidence=0.95) == pytest.approx(100.0)
    low, high = found.interval(confidence=0.95)
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / 100))
    mirrored = share([0.0] * 100, [50.0] * 100)
    assert mirrored.interval(confidence=0.95) == pytest.approx((0.0, 1.0 - low))


def test_a_first_miss_makes_no_interval_much_narrower_than_none_does():
    none = share([50.0] * 100, [50.0] * 100).interval(confidence=0.95)
    one = share([49.0] + [50.0] * 99, [50.0] * 100).interval(confidence=0.95)
    assert 1.0 - one[0] > 0.7 * (1.0 - none[0])


@pytest.mark.parametrize("truth", [0.9, 0.98, 0.999, 1.0])
@pytest.mark.parametrize("alike", [0.0, 0.2], ids=["independent", "alike within documents"])
@pytest.mark.parametrize("documents", [20, 200])
def test_the_interval_of_a_share_covers(truth, alike, documents):
    """Documents of very unequal length; 95% less 3 standard errors of 600 runs, and 1%."""
    draws, runs = np.random.default_rng(1), 600
    held = 0
    for _ in range(runs):
        lengths = np.maximum(1, np.exp(draws.normal(3.0, 1.0, documents)).round())
        shares = np.full(documents, truth)
        if alike and truth < 1.0:
            spread = (1.0 - alike) / alike
            shares = draws.beta(truth * spread, (1.0 - truth) * spread, documents)
        hits = draws.binomial(lengths.astype(int), shares).astype(float)
        low, high = Share(hits=hits, positions=lengths).interval(confidence=0.95)
        held += low <= truth <= high
    assert held / runs > 0.94 - 3.0 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("n", [5, 60, 1000])
def test_ranks_are_those_of_the_exact_binomial_interval(probability, n):
    """P[X_(low) <= quantile < X_(high)] from scipy's binomial distribution."""
    low, high = rank_limits(probability, n, float(n), confidence=0.95)
    below = stats.binom(n, probability)
    assert below.cdf(low - 1) <= 0.025
    assert low == 0 or below.cdf(low) > 0.025
    assert high == n + 1 or below.sf(high - 1) <= 0.025
    assert below.sf(high - 2) > 0.025


def test_fewer_effective_positions_widen_the_ranks():
    assert rank_limits(0.5, 1000, 1000.0, confidence=0.95) == (469, 532)
    low, high = rank_limits(0.5, 1000, 100.0, confidence=0.95)
    assert (low, high) == (391, 610)
    assert rank_limits(0.99, 1000, 100.0, confidence=0.95)[1] == 1001
