"""The calibration of benchmarks/, in small: every interval and test, with its own truth."""

from __future__ import annotations

import math

import pytest
from calibration_cells import cells

from benchmarks.calibration import ALL_METHODS
from benchmarks.tally import LOWEST, tally

# Where an interval is known to be too narrow even from 200 documents on (docs/calibration.md).
LIMITS = ("99% identical", "0.5% flips", "base always right")
CLOSED_FORMS = [name for name in ALL_METHODS if name not in ("bootstrap", "unit")]


def beyond_chance(share, limit, *, errors=4.0):
    """Whether a share falls short of a limit by more than so many Monte Carlo errors."""
    return share.value < limit - errors * math.sqrt(limit * (1.0 - limit) / share.of)


_LONG = ("clusters", "groups")  # seconds each


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, marks=pytest.mark.slow) if one in _LONG else one for one in CLOSED_FORMS],
)
def test_intervals_hold_the_truth_and_tests_keep_their_size(method):
    for cell in cells(method, n=200):
        found = tally(method, cell, 60)
        assert found.contradictions == 0
        known = any(limit in cell.data for limit in LIMITS)
        if found.holds is not None and not known:
            assert not beyond_chance(found.holds, LOWEST), cell.data
        if cell.null:
            size, _ = next(iter(found.rejected.values()))
            assert size.value <= 0.055 + 4.0 * math.sqrt(0.05 * 0.95 / size.of), cell.data


@pytest.mark.nightly
@pytest.mark.parametrize("n", [200, 2_000])
@pytest.mark.parametrize("method", ["mean", "perplexity", "weighted_perplexity", "0-1", "clusters"])
def test_in_many_runs_nothing_is_outside_the_limits_but_what_the_documentation_names(method, n):
    for cell in cells(method, n=n):
        found = tally(method, cell, 800 if n == 200 else 200)
        assert found.contradictions == 0
        if not any(limit in cell.data for limit in LIMITS):
            assert not beyond_chance(found.holds, LOWEST, errors=3.5), cell.data
            if found.plain is not None and beyond_chance(found.plain, LOWEST):
                assert found.flagged.value > 0.5, cell.data  # t alone would not: a caveat says so


@pytest.mark.nightly
def test_the_bootstrap_holds_the_truth():
    for cell in cells("bootstrap", n=200):
        found = tally("bootstrap", cell, 400)
        assert found.contradictions == 0
        assert not beyond_chance(found.holds, 0.92), cell.data
