from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from evalguard.core.comparison import decide
from evalguard.stats.power import (
    documents_needed,
    documents_to_detect,
    documents_to_show_no_loss,
    smallest_effect,
)
from evalguard.stats.probability import t_estimate


def estimate(point: float, stderr: float, n: int):
    return t_estimate(point, stderr, df=n - 1, confidence=0.95, method="paired-t")


@pytest.mark.parametrize(
    ("point", "stderr", "n", "tolerance"),
    [
        (0.4, 0.5, 100, 1.0),
        (0.9, 0.7, 50, 1.0),
        (0.01, 0.6, 300, 1.0),
        (-0.5, 1.5, 12, 1.0),
        (-0.1, 0.6, 200, 1.0),
        (-0.3, 0.4, 200, 0.0),
    ],
)
def test_the_same_rule_decides_at_the_needed_documents_and_not_at_a_tenth_fewer(
    point, stderr, n, tolerance
):
    def outcome(documents: int) -> str:
        # SE_paired and SE_base shrink alike, so that the tolerated drift shrinks too
        shrunk = math.sqrt(n / documents)
        half = scipy_stats.t.ppf(0.975, documents - 1) * stderr * shrunk
        unit = shrunk  # SE_base, 1 at n documents: a margin in sigmas of size `tolerance`
        low, high = (point - half) / unit, (point + half) / unit
        return decide(point / unit, low, high, tolerance).outcome

    needed = documents_needed(estimate(point, stderr, n), n=n, tolerance=tolerance)
    assert outcome(n) == "undecided"
    assert needed > n
    assert outcome(needed + 1) != "undecided"
    earlier = outcome(max(2, int(0.9 * needed)))
    # the literal rule may fail it on the way there, without the drift being real yet
    assert earlier == "undecided" or (earlier == "regressed" and point > 0.0)


@pytest.mark.parametrize("tolerance", [0.0, 1.0])
def test_a_drift_of_zero_in_a_wide_interval_is_never_decided(tolerance):
    assert documents_needed(estimate(0.0, 0.6, 40), n=40, tolerance=tolerance) is None


def test_more_than_the_present_documents_are_always_asked_for():
    assert documents_needed(estimate(0.5, 1e-6, 40), n=40, tolerance=1.0) == 41


@pytest.mark.parametrize("point", [1e-300, 1e-16, -1e-16, 1e-5])
def test_a_need_beyond_a_billion_documents_is_none(point):
    assert documents_needed(estimate(point, 1.0, 40), n=40, tolerance=1.0) is None


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
