from __future__ import annotations

import numpy as np
import pytest

from evalguard.stats.tails import worst_documents


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
