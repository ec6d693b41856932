from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.core.moments import mean_moments, ratio_moments

scores = st.floats(-1e6, 1e6)
score_arrays = arrays(np.float64, st.integers(2, 60), elements=scores)


@given(score_arrays)
def test_mean_and_stderr_agree_with_numpy(values):
    moments = mean_moments(values)
    scale = 1e-12 * (1.0 + np.max(np.abs(values)))
    assert moments.point == pytest.approx(np.mean(values), abs=scale)
    expected = np.std(values, ddof=1) / math.sqrt(values.shape[0])
    assert moments.stderr == pytest.approx(expected, rel=1e-9, abs=scale)


@given(score_arrays, st.randoms(use_true_random=False))
def test_the_order_of_documents_changes_no_bit(values, random):
    order = list(range(values.shape[0]))
    random.shuffle(order)
    weights = np.linspace(1.0, 3.0, values.shape[0])
    assert mean_moments(values[order]) == mean_moments(values)
    assert ratio_moments(values[order], weights[order]) == ratio_moments(values, weights)


@pytest.mark.parametrize("value", [0.1, -3.7, 1e-300, 0.0])
def test_equal_values_have_exactly_their_mean_and_no_scatter(value):
    moments = mean_moments(np.full(49, value))
    assert (moments.point, moments.stderr) == (value, 0.0)


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1.0, 1e149])
def test_tiny_and_huge_scores_keep_their_scatter(scale):
    values = np.array([1.0, 2.0, 4.0]) * scale
    expected = np.std([1.0, 2.0, 4.0], ddof=1) / math.sqrt(3) * scale
    assert mean_moments(values).stderr == pytest.approx(expected, rel=1e-12)


def test_the_ratio_is_the_one_of_the_formula():
    values, weights = np.array([-3.0, -8.0, -2.5, -11.0]), np.array([2.0, 5.0, 1.0, 6.0])
    ratio = -24.5 / 14.0
    residual = values - ratio * weights
    moments = ratio_moments(values, weights)
    assert moments.point == pytest.approx(ratio, rel=1e-15)
    expected = math.sqrt(4 / 3 * np.sum(residual**2)) / 14.0
    assert moments.stderr == pytest.approx(expected, rel=1e-14)


@given(score_arrays)
def test_with_unit_weights_the_ratio_is_the_mean(values):
    ratio, mean = ratio_moments(values, np.ones_like(values)), mean_moments(values)
    scale = 1e-9 * (1.0 + np.max(np.abs(values)))
    assert ratio.point == pytest.approx(mean.point, abs=scale)
    assert ratio.stderr == pytest.approx(mean.stderr, rel=1e-9, abs=scale)


def test_the_ratio_stderr_agrees_with_a_bootstrap():
    rng = np.random.default_rng(5)
    weights = rng.integers(5, 60, 800).astype(float)
    values = -weights * rng.gamma(4.0, 0.5, 800)
    rows = rng.integers(0, 800, (4000, 800))
    resampled = values[rows].sum(axis=1) / weights[rows].sum(axis=1)
    assert ratio_moments(values, weights).stderr == pytest.approx(resampled.std(), rel=0.05)
