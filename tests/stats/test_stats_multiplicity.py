from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from evalguard.core.multiple_tests import benjamini_hochberg, holm


def test_holm_of_a_known_family():
    # 4 x 0.005, 3 x 0.01, 2 x 0.03, then the running maximum
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_holm_agrees_with_statsmodels(count):
    p_values = np.random.default_rng(count).random(count).round(2).tolist()  # rounded: with ties
    expected = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-300)


def test_one_test_needs_no_adjustment_and_none_gives_none():
    assert holm([0.02]) == (0.02,)
    assert holm([]) == ()


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_benjamini_hochberg_agrees_with_statsmodels_and_scipy(count):
    p_values = np.random.default_rng(count).random(count).round(2).tolist()  # rounded: with ties
    expected = multipletests(p_values, method="fdr_bh")[1]
    assert benjamini_hochberg(p_values) == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-300)
    expected = stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values) == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-300)


def test_benjamini_hochberg_of_a_known_family():
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.02, 0.04, 0.04, 0.02))
    assert benjamini_hochberg([]) == ()
