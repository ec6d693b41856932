"""Power: golden values, outside references, and the power that simulated runs really have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from evalguard.stats.binary import mcnemar_exact, tango_interval
from evalguard.stats.power import (
    detectable_drift,
    detectable_flip_drift,
    flip_documents_to_detect,
    flip_documents_to_show_harmless,
    paired_documents_to_detect,
)

ALPHA, POWER = 0.025, 0.8
RUNS = 2000
MONTE_CARLO = 3 * math.sqrt(POWER * (1 - POWER) / RUNS)
levels = st.sampled_from([0.005, 0.025, 0.05])
powers = st.sampled_from([0.5, 0.8, 0.95])


def test_non_inferiority_of_flips_is_the_golden_value():
    # statistics.md: flips 9.03%, margin 1 percentage point
    needed = flip_documents_to_show_harmless(0.0903, 0.01, alpha=0.05, power=0.8)
    assert needed == 5583


@pytest.mark.parametrize("n", [30, 64, 300, 5000])
@pytest.mark.parametrize("alpha", [0.005, 0.025, 0.05])
@pytest.mark.parametrize("power", [0.8, 0.95])
def test_the_t_approximation_has_the_power_of_the_non_central_t(n, alpha, power):
    drift = detectable_drift(1.0, n, alpha=alpha, power=power)
    critical = scipy_stats.t.ppf(1 - alpha, n - 1)
    exact = scipy_stats.nct.sf(critical, n - 1, drift * math.sqrt(n))
    assert exact == pytest.approx(power, abs=0.01)


def test_needed_documents_agree_with_statsmodels():
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    reference = power.solve_power(effect_size=0.2, alpha=ALPHA, power=0.9, alternative="larger")
    needed = paired_documents_to_detect(1.0, 0.2, alpha=ALPHA, power=0.9)
    assert needed == pytest.approx(reference, abs=1.0)


@given(st.floats(1e-3, 10), st.floats(1e-3, 1), levels, powers)
def test_needed_documents_are_the_smallest_that_detect_the_drift(scatter, drift, alpha, power):
    needed = paired_documents_to_detect(scatter, drift, alpha=alpha, power=power)
    assert detectable_drift(scatter, needed, alpha=alpha, power=power) <= drift
    if needed > 2:
        assert detectable_drift(scatter, needed - 1, alpha=alpha, power=power) > drift


@given(st.floats(0, 1), st.integers(30, 10**6), levels, powers)
def test_detectable_flips_and_needed_documents_are_inverse(rate, n, alpha, power):
    drift = detectable_flip_drift(rate, n, alpha=alpha, power=power)
    needed = flip_documents_to_detect(rate, drift, alpha=alpha, power=power)
    assert needed == pytest.approx(n, abs=1) or drift == 1.0


@given(st.floats(0.001, 0.5), st.floats(0.001, 0.2), levels, powers)
def test_more_flips_and_smaller_drifts_need_more_documents(rate, drift, alpha, power):
    def needed(rate, drift):
        return (
            flip_documents_to_detect(rate, drift, alpha=alpha, power=power),
            flip_documents_to_show_harmless(rate, drift, alpha=alpha, power=power),
        )

    for one, other in zip(needed(rate, drift), needed(2 * rate, drift), strict=True):
        assert one <= other
    for one, other in zip(needed(rate, drift), needed(rate, drift / 2), strict=True):
        assert one <= other


def test_t_tests_detect_the_drift_as_often_as_planned():
    rng = np.random.default_rng(1)
    needed = paired_documents_to_detect(1.0, 0.25, alpha=ALPHA, power=POWER)
    d = rng.normal(0.25, 1.0, size=(RUNS, needed))
    t = d.mean(axis=1) / (d.std(axis=1, ddof=1) / math.sqrt(needed))
    found = np.mean(t > scipy_stats.t.ppf(1 - ALPHA, needed - 1))
    assert found == pytest.approx(POWER, abs=MONTE_CARLO)


@pytest.mark.parametrize(("rate", "drift"), [(0.09, 0.03), (0.03, 0.02), (0.3, 0.05)])
def test_the_exact_mcnemar_test_detects_the_drift_as_often_as_planned(rate, drift):
    rng = np.random.default_rng(2)
    needed = flip_documents_to_detect(rate, drift, alpha=ALPHA, power=POWER)
    shares = [(rate + drift) / 2, (rate - drift) / 2, 1 - rate]
    counts = rng.multinomial(needed, shares, size=RUNS)
    found = np.mean([mcnemar_exact(int(b), int(c)) <= ALPHA for b, c, _ in counts])
    # cautious where few documents flip: 17 of them in the second case
    assert POWER - MONTE_CARLO <= found <= POWER + MONTE_CARLO + 0.03


@pytest.mark.parametrize(("rate", "margin"), [(0.09, 0.03), (0.02, 0.01)])
def test_tango_intervals_rule_the_margin_out_as_often_as_planned(rate, margin):
    rng = np.random.default_rng(3)
    needed = flip_documents_to_show_harmless(rate, margin, alpha=ALPHA, power=POWER)
    counts = rng.multinomial(needed, [rate / 2, rate / 2, 1 - rate], size=500)
    ends = [tango_interval(int(b), int(c), needed)[1] for b, c, _ in counts]
    assert np.mean(np.array(ends) < margin) == pytest.approx(POWER, abs=0.07)


def test_without_any_flip_the_documents_are_those_after_which_tango_ends_below_the_margin():
    needed = flip_documents_to_show_harmless(0.0, 0.01, alpha=ALPHA, power=POWER)
    assert tango_interval(0, 0, needed)[1] < 0.01 < tango_interval(0, 0, needed - 2)[1]


def test_without_any_flip_a_drift_brings_its_own_flips():
    drift = detectable_flip_drift(0.0, 1000, alpha=ALPHA, power=POWER)
    again = detectable_flip_drift(drift, 1000, alpha=ALPHA, power=POWER)
    assert drift == pytest.approx(again, rel=1e-9)
    assert 6 / 1000 < drift < 12 / 1000  # McNemar rejects from 6 losses in a row on


def test_no_drift_is_detected_by_no_number_of_documents():
    assert paired_documents_to_detect(1.0, 0.0, alpha=ALPHA, power=POWER) is None
    assert paired_documents_to_detect(1.0, 1e-12, alpha=ALPHA, power=POWER) is None
    assert paired_documents_to_detect(math.inf, 1.0, alpha=ALPHA, power=POWER) is None
    assert flip_documents_to_detect(0.1, 0.0, alpha=ALPHA, power=POWER) is None
    assert flip_documents_to_show_harmless(0.1, 0.0, alpha=ALPHA, power=POWER) is None


@pytest.mark.parametrize(("alpha", "power"), [(0.0, 0.8), (0.5, 0.8), (0.05, 0.4), (0.05, 1.0)])
def test_an_impossible_level_or_power_is_refused(alpha, power):
    with pytest.raises(ValueError, match="between"):
        detectable_drift(1.0, 10, alpha=alpha, power=power)


def test_one_document_has_no_standard_error():
    with pytest.raises(ValueError, match="at least 2"):
        detectable_drift(1.0, 1, alpha=ALPHA, power=POWER)
