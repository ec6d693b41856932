from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from evalguard.stats.skewness import skewness, unequal_weights, worst_documents


def test_the_worst_percent_of_a_heavy_tail_carries_most_of_the_drift():
    d = np.full(1000, 0.001)
    d[[10, 200, 999]] = 5.0
    tail = worst_documents(d)
    assert tail.count == 10
    assert tail.share == pytest.approx((15.0 + 7 * 0.001) / (15.0 + 0.997))
    assert tail.heavy
    assert worst_documents(-d) == tail


def test_an_even_drift_has_no_heavy_tail():
    tail = worst_documents(np.full(400, 0.25))
    assert (tail.count, tail.share, tail.normal_share) == (4, 0.01, 0.01)
    assert not tail.heavy


def test_no_total_drift_has_no_tail():
    assert worst_documents(np.array([1.0, -1.0])).share == 0.0


def test_normal_scatter_is_predicted_and_never_heavy_however_small_its_mean():
    rng = np.random.default_rng(11)
    for mean in (1.0, 0.1, 0.02):
        d = rng.normal(0.0, 1.0, 100_000)
        d += mean - d.mean()
        tail = worst_documents(d)
        assert tail.share == pytest.approx(tail.normal_share, rel=0.02)
        assert not tail.heavy
    assert worst_documents(rng.normal(0.02, 1.0, 100_000)).share > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_skewness_agrees_with_scipy(seed):
    d = np.random.default_rng(seed).lognormal(0.0, 1.0, 200)
    assert skewness(d, None).value == pytest.approx(scipy_stats.skew(d), rel=1e-12)
    assert skewness(-d, None).value == pytest.approx(-scipy_stats.skew(d), rel=1e-12)
    assert skewness(d, np.ones(200)).value == pytest.approx(scipy_stats.skew(d), rel=1e-9)


def test_the_skewness_of_a_ratio_is_that_of_its_residuals():
    rng = np.random.default_rng(4)
    weights = np.ceil(rng.lognormal(4.0, 1.5, 100))
    d = 0.02 * weights + rng.normal(0.0, 1.0, 100)  # long documents drift more, as they should
    residuals = d - d.sum() / weights.sum() * weights
    centred = np.mean(residuals**3) / np.mean(residuals**2) ** 1.5
    assert skewness(d, weights).value == pytest.approx(centred, rel=1e-9)
    assert skewness(d, weights).needed < 100 < skewness(d, None).needed


@pytest.mark.parametrize("value", [0.0, 0.25, -1e-300])
def test_differences_without_scatter_have_no_skewness(value):
    assert skewness(np.full(49, value), None).needed == 0.0


def test_a_rare_loss_needs_the_documents_of_cochrans_rule():
    # k of n documents lose the same: G1^2 is about n / k, so that 25 losses are asked for
    for losses, enough in ((10, False), (40, True)):
        d = np.zeros(2000)
        d[:losses] = 1.0
        assert (skewness(d, None).needed <= 2000) == enough


def test_equal_weights_count_each_document_once():
    found = unequal_weights(np.full(200, 7.0))
    assert found.effective == pytest.approx(200.0)
    assert found.needed == 30.0


def test_one_long_text_among_short_ones_counts_as_little_more_than_itself():
    weights = np.array([1000.0, *[1.0] * 99])
    found = unequal_weights(weights)
    assert found.effective == pytest.approx(1099.0**2 / (1000.0**2 + 99.0))
    variation = np.std(weights) / np.mean(weights)
    assert found.needed == pytest.approx(100.0 * variation**2)


def test_texts_without_a_word_weigh_nothing():
    assert unequal_weights(np.array([0.0, 3.0, 3.0])).effective == pytest.approx(2.0)
