from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evalguard.core.verdict import Verdict, decide

INF = math.inf


def verdict(outcome: str, significant: bool = False, certain: bool = False) -> Verdict:
    return Verdict(outcome=outcome, significant=significant, certain=certain)


@pytest.mark.parametrize(
    ("sigma", "lo", "hi", "expected"),
    [
        # every row of the table
        (1.5, 1.2, 1.8, verdict("regressed", True, True)),
        (1.5, 0.5, 2.5, verdict("regressed", True)),
        (1.5, -0.5, 3.5, verdict("regressed")),
        (0.5, 0.2, 0.8, verdict("degraded", True)),
        (0.9, 0.2, 1.6, verdict("degraded", True)),
        (-0.5, -0.8, -0.2, verdict("improved")),
        (0.1, -0.3, 0.5, verdict("unchanged")),
        (-0.1, -0.5, 0.3, verdict("unchanged")),
        (0.5, -0.5, 1.5, verdict("undecided")),
        (-0.5, -2.5, 1.5, verdict("undecided")),
        # boundaries
        (1.0, 0.5, 1.5, verdict("degraded", True)),
        (1.0, 1.0, 1.0, verdict("degraded", True)),
        (1.0, -0.5, 2.5, verdict("undecided")),
        (1.0 + 2e-9, 1.0, 1.5, verdict("regressed", True)),
        # the last bits of a double decide nothing at the margin
        (math.nextafter(1.0, 2.0), 0.5, 1.5, verdict("degraded", True)),
        (math.nextafter(1.0, 2.0), -0.5, 2.5, verdict("undecided")),
        (1.5, math.nextafter(1.0, 2.0), 2.0, verdict("regressed", True)),
        (1.5, 1.0 + 2e-9, 2.0, verdict("regressed", True, True)),
        (0.5, -0.5, math.nextafter(1.0, 0.0), verdict("undecided")),
        (0.5, -0.5, 1.0 - 2e-9, verdict("unchanged")),
        (-0.0, -0.0, -0.0, verdict("unchanged")),
        (5e-324, 5e-324, 5e-324, verdict("degraded", True)),
        (-5e-324, -5e-324, -5e-324, verdict("improved")),
        (1.5, 1.0, 2.0, verdict("regressed", True)),
        (1.5, 0.0, 3.0, verdict("regressed")),
        (0.5, 0.0, 0.9, verdict("unchanged")),
        (0.5, 0.0, 1.0, verdict("undecided")),
        (-0.5, -1.0, 0.0, verdict("unchanged")),
        (0.0, 0.0, 0.0, verdict("unchanged")),
        # infinite values
        (INF, INF, INF, verdict("regressed", True, True)),
        (INF, 2.0, INF, verdict("regressed", True, True)),
        (INF, -INF, INF, verdict("regressed")),
        (0.0, -INF, INF, verdict("undecided")),
        (-INF, -INF, -INF, verdict("improved")),
        (-INF, -INF, 0.0, verdict("unchanged")),
        (-INF, -INF, INF, verdict("undecided")),
    ],
)
def test_each_row_and_boundary_of_the_table_at_margin_one(sigma, lo, hi, expected):
    assert decide(sigma, lo, hi, 1.0) == expected


@pytest.mark.parametrize("margin", [1e-300, 1e-9, 1e9, 1e300])
def test_tiny_and_huge_margins_keep_their_boundary(margin):
    assert decide(margin, -INF, INF, margin).outcome == "undecided"
    assert decide(margin * (1 + 1e-8), -INF, INF, margin).outcome == "regressed"
    assert decide(0.0, -INF, margin * (1 - 1e-8), margin).outcome == "unchanged"
    assert decide(0.0, -INF, margin, margin).outcome == "undecided"


def test_a_margin_of_zero_fails_any_drift_to_the_worse():
    assert decide(0.01, -0.1, 0.12, 0.0).outcome == "regressed"
    assert decide(0.0, -0.1, 0.1, 0.0).outcome == "undecided"
    assert decide(-0.2, -0.3, -0.1, 0.0).outcome == "improved"


@pytest.mark.parametrize("position", range(3))
def test_a_nan_is_refused(position):
    numbers = [0.5, 0.2, 0.8]
    numbers[position] = math.nan
    with pytest.raises(ValueError, match="numbers"):
        decide(*numbers, 1.0)


def test_exchanged_ends_are_refused():
    with pytest.raises(ValueError, match="exchanged"):
        decide(0.5, 0.8, 0.2, 1.0)


@pytest.mark.parametrize("margin", [-0.1, math.nan, INF])
def test_an_impossible_margin_is_refused(margin):
    with pytest.raises(ValueError, match="margin"):
        decide(0.5, 0.2, 0.8, margin)


def test_a_verdict_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        decide(0.5, 0.2, 0.8, 1.0).outcome = "unchanged"


extended = st.floats(allow_nan=False, allow_infinity=True)
margins = st.floats(min_value=0.0, max_value=1e6)


@given(st.lists(extended, min_size=3, max_size=3).map(sorted), margins)
def test_every_sigma_within_its_interval_matches_exactly_one_row(numbers, margin):
    lo, sigma, hi = numbers
    assume(not any(math.isclose(x, margin, rel_tol=1e-8) for x in numbers if x != margin))
    rows = {
        "regressed": sigma > margin,
        "degraded": sigma <= margin and lo > 0.0,
        "improved": sigma <= margin and hi < 0.0,
        "unchanged": sigma <= margin and lo <= 0.0 <= hi < margin,
        "undecided": sigma <= margin and lo <= 0.0 and hi >= margin,
    }
    matching = [outcome for outcome, holds in rows.items() if holds]
    assert len(matching) == 1
    got = decide(sigma, lo, hi, margin)
    assert got.outcome == matching[0]
    assert got.significant == (lo > 0.0)
    assert got.certain == (lo > margin)


@given(st.lists(extended, min_size=3, max_size=3).map(sorted), margins)
def test_certain_implies_significant_and_regressed(numbers, margin):
    lo, sigma, hi = numbers
    got = decide(sigma, lo, hi, margin)
    assert not got.certain or (got.significant and got.outcome == "regressed")
