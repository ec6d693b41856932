from __future__ import annotations

import math

import pytest
from scipy import stats as scipy_stats

from evalguard.stats import documents_needed
from evalguard.stats.estimate import t_estimate


def estimate(point: float, stderr: float, n: int):
    return t_estimate(point, stderr, df=n - 1, confidence=0.95, method="paired-t")


@pytest.mark.parametrize(
    ("point", "stderr", "n", "tolerance"),
    [(0.0, 0.6, 100, 1.0), (0.4, 0.5, 100, 1.0), (0.9, 0.7, 50, 1.0), (-0.5, 1.5, 12, 1.0)],
)
def test_the_needed_documents_decide_and_a_tenth_fewer_do_not(point, stderr, n, tolerance):
    needed = documents_needed(estimate(point, stderr, n), n=n, tolerance=tolerance)

    def decided(documents: int) -> bool:
        half = scipy_stats.t.ppf(0.975, documents - 1) * stderr * math.sqrt(n / documents)
        return point + half < tolerance or point - half > 0.0

    assert needed > n
    assert decided(needed + 1)
    assert not decided(max(2, int(0.9 * needed)))


def test_a_drift_at_zero_under_a_margin_of_zero_is_never_decided():
    assert documents_needed(estimate(0.0, 0.5, 40), n=40, tolerance=0.0) is None


def test_more_than_the_present_documents_are_always_asked_for():
    assert documents_needed(estimate(0.5, 1e-6, 40), n=40, tolerance=1.0) == 41
