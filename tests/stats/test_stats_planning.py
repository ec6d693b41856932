from __future__ import annotations

import math

import pytest
from scipy import stats as scipy_stats

from evalguard.stats import documents_needed
from evalguard.stats.estimate import t_estimate
from evalguard.verdict import decide


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


def test_a_need_beyond_double_precision_is_none():
    assert documents_needed(estimate(1e-300, 1.0, 40), n=40, tolerance=1.0) is None
