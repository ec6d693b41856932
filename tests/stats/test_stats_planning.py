from __future__ import annotations

import math

import numpy as np
import pytest

from evalguard.stats.documents_needed import (
    documents_to_detect,
    documents_to_show_no_loss,
    smallest_effect,
)

# Golden values of the shared statistics page; error bars: E. Miller, Adding Error Bars to Evals.


def test_the_smallest_effects_of_198_documents_are_the_golden_ones():
    def effect(repeats: int) -> float:
        return smallest_effect(198, between=1 / 9, within=1 / 6, repeats=repeats)

    assert effect(1) == pytest.approx(0.1327, abs=5e-5)
    assert effect(10) == pytest.approx(0.0757, abs=5e-5)


def test_three_points_need_969_documents_where_answers_do_not_vary():
    # the page's 969 has no variance within a document; with one answer each of 1/6 it is 4 times
    assert documents_to_detect(0.03, between=1 / 9) == 969
    assert documents_to_detect(0.03, between=1 / 9, within=1 / 6) == 3876


def test_the_smallest_effect_and_its_documents_are_inverse():
    variances = {"between": 0.2, "within": 0.1, "repeats": 3}
    for n in (10, 198, 5153):
        effect = smallest_effect(n, **variances)
        assert documents_to_detect(effect * (1 + 1e-9), **variances) == n


def test_a_planned_number_of_documents_has_the_planned_power():
    n, rng = documents_to_show_no_loss(0.09, 0.03), np.random.default_rng(8)
    flips = rng.choice([-1.0, 0.0, 1.0], p=[0.045, 0.91, 0.045], size=(4000, n))
    upper = flips.mean(axis=1) + 1.645 * flips.std(axis=1) / math.sqrt(n)
    assert np.mean(upper < 0.03) == pytest.approx(0.8, abs=0.02)
