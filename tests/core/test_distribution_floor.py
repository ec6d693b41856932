"""The floor of a task's distributions is the most that any variation moves them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.noise_floor import (
    DistributionShift,
    TaskDistributionFloor,
    distribution_floors,
    kl_beside,
)


def moved(variation: str, kl: float, half: float = 0.0, **changes: Any) -> DistributionShift:
    fields: dict[str, Any] = {
        "variation": variation,
        "task": "t",
        "n": 10,
        "positions": 40,
        "kl": kl,
        "kl_interval": (kl - half, kl + half),
        "kl_bounds": None,
        "kl_max": 9 * kl,
        "top1_changed": 0.0,
        "top1_changed_interval": (0.0, 0.1),
        "bit_identical": kl == 0.0,
        "confidence": 0.95,
    }
    return DistributionShift(**{**fields, **changes})


def floor(kl: float, upper: float) -> TaskDistributionFloor:
    return distribution_floors([moved("a", kl, upper - kl)])[0]


def test_the_floor_is_the_largest_kl_and_names_its_variation() -> None:
    shifts = [moved("a", 1e-4, 5e-4, kl_max=2.0), moved("b", 3e-4, 1e-5, top1_changed=0.05)]
    (found,) = distribution_floors(shifts)
    assert (found.kl, found.variation) == (3e-4, "b")
    assert found.kl_upper == pytest.approx(6e-4)
    assert (found.kl_max, found.top1_changed) == (2.0, 0.05)
    assert not found.bit_identical


def test_every_task_has_a_floor_of_its_own() -> None:
    first, second = distribution_floors([moved("a", 0.1), moved("a", 0.0, task="u")])
    assert (first.task, second.task) == ("t", "u")
    assert second.bit_identical
    assert distribution_floors([]) == ()


def test_proven_bounds_widen_the_floor_and_no_interval_leaves_its_value() -> None:
    assert moved("a", 1e-4, kl_bounds=(0.0, 2e-4)).kl_upper == 2e-4
    assert moved("a", 1e-4, kl_interval=None).kl_upper == 1e-4


def test_a_mean_kl_is_told_in_times_the_floor() -> None:
    found = kl_beside(0.004, floor(1e-4, 2e-4), measured="2026-11-20T12:00:00+00:00")
    assert found.times == pytest.approx(40.0)
    assert (found.within, found.within_upper) == (False, False)
    assert (found.n, found.positions) == (10, 40)
    assert kl_beside(1.5e-4, floor(1e-4, 2e-4), measured="").within_upper


def test_without_a_floor_above_zero_there_is_no_ratio() -> None:
    assert kl_beside(0.1, floor(0.0, 0.0), measured="").times is None
    assert kl_beside(math.inf, floor(0.1, 0.2), measured="").times is None
    assert kl_beside(0.0, floor(0.0, 0.0), measured="").within


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_the_three_answers_agree(kl: float, size: float, more: float) -> None:
    found = kl_beside(kl, floor(size, size + more), measured="")
    assert found.within_upper or not found.within
    if found.times is not None:
        assert found.within == (found.times <= 1.0)
