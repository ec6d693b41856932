"""The floor of a metric is the most that any variation shows; a drift is held against it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.noise_floor import MetricFloor, Shift, beside, metric_floors

SIZES = st.floats(0, 1e6, allow_nan=False)


def shift(variation: str, sigma: float, half: float = 0.0, **changes: Any) -> Shift:
    fields: dict[str, Any] = {
        "variation": variation,
        "task": "t",
        "filter": "none",
        "metric": "acc",
        "n": 100,
        "sigma": sigma,
        "sigma_interval": (sigma - half, sigma + half),
        "paired_stderr": half / 2,
        "document_sd": half,
        "largest_difference": 2 * half,
        "largest_document": 3,
        "flips": None,
        "bit_identical": sigma == half == 0.0,
        "method": "paired-t",
        "confidence": 0.95,
    }
    return Shift(**{**fields, **changes})


def floor(sigma: float, upper: float) -> MetricFloor:
    return metric_floors([shift("a", sigma, upper - sigma)])[0]


def test_the_floor_is_the_largest_drift_of_either_sign_and_names_its_variation() -> None:
    (found,) = metric_floors([shift("a", 0.1, 0.5), shift("b", -0.3, 0.1), shift("c", 0.2, 0.2)])
    assert (found.sigma, found.variation) == (0.3, "b")
    assert found.sigma_upper == pytest.approx(0.6)  # of a, which is known worst
    assert found.document_sd == 0.5
    assert not found.bit_identical


def test_every_metric_has_a_floor_of_its_own() -> None:
    shifts = [shift("a", 0.1), shift("a", 0.5, metric="f1", document_sd=None), shift("b", 0.2)]
    first, second = metric_floors(shifts)
    assert (first.metric, first.sigma) == ("acc", 0.2)
    assert (second.metric, second.sigma, second.document_sd) == ("f1", 0.5, None)
    assert metric_floors([]) == ()


def test_a_floor_that_nothing_moves_is_bit_identical() -> None:
    (found,) = metric_floors([shift("a", 0.0), shift("b", 0.0)])
    assert found.bit_identical
    drifted = beside(0.1, found, measured="")
    assert (drifted.times, drifted.within, drifted.within_upper) == (None, False, False)
    assert beside(0.0, found, measured="").within


def test_a_drift_is_told_in_times_the_floor_whatever_its_sign() -> None:
    above = beside(-1.4, floor(0.1, 0.2), measured="2026-11-20T12:00:00+00:00")
    assert above.times == pytest.approx(14.0)
    assert (above.within, above.within_upper) == (False, False)
    assert (above.n, above.measured) == (100, "2026-11-20T12:00:00+00:00")


def test_a_floor_that_is_known_only_roughly_may_hold_the_drift() -> None:
    found = beside(0.5, floor(0.1, 0.8), measured="")
    assert (found.within, found.within_upper) == (False, True)
    assert found.times == pytest.approx(5.0)


def test_infinite_drifts_and_floors_have_no_ratio() -> None:
    assert beside(math.inf, floor(0.1, 0.2), measured="").times is None
    endless = beside(1.0, floor(math.inf, math.inf), measured="")
    assert endless.times is None
    assert endless.within


@given(SIZES, SIZES, SIZES)
def test_the_three_answers_agree(sigma: float, size: float, more: float) -> None:
    found = beside(sigma, floor(size, size + more), measured="")
    if found.within:
        assert found.within_upper
        assert found.times is None or found.times <= 1.0
    elif found.times is not None:
        assert found.times >= 1.0
