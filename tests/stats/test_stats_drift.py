from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from paired_tables import paired
from scipy import stats as scipy_stats

from benchmarks.printed_results import harness_sigma
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.drift import estimate_drift

RNG = np.random.default_rng(20261120)
N = 300
BASE = -RNG.gamma(1.4, 1.0, N)
CAND = BASE - RNG.normal(0.03, 0.12, N)
WEIGHTS = RNG.integers(4, 60, N).astype(float)
RIGHT = (RNG.random(N) < 0.6).astype(float)
CAND_RIGHT = np.where(RNG.random(N) < 0.15, 1.0 - RIGHT, RIGHT)


def drift(base, candidate, aggregation="mean", confidence=0.95, **options):
    return estimate_drift(paired(base, candidate, aggregation, **options), confidence=confidence)


def every_kind(base=BASE, cand=CAND):
    """One drift of each kind, by aggregation."""
    scaled = (base * WEIGHTS, cand * WEIGHTS)
    return {
        "mean": drift(base, cand),
        "binary": drift(RIGHT, CAND_RIGHT),
        "perplexity": drift(base, cand, "perplexity"),
        "weighted_perplexity": drift(*scaled, "weighted_perplexity", weights=WEIGHTS),
        "bits_per_byte": drift(*scaled, "bits_per_byte", weights=WEIGHTS),
    }


KINDS = tuple(every_kind())


def test_the_mean_agrees_with_scipy_ttest_rel_to_1e_12():
    got = drift(BASE, CAND)
    for alternative, p_value in (("greater", got.estimate.p_value),):
        expected = scipy_stats.ttest_rel(BASE, CAND, alternative=alternative)
        assert p_value == pytest.approx(expected.pvalue, rel=1e-12)
    interval = scipy_stats.ttest_rel(BASE, CAND).confidence_interval(0.95)
    assert got.estimate.low == pytest.approx(interval.low, rel=1e-12)
    assert got.estimate.high == pytest.approx(interval.high, rel=1e-12)
    assert got.base.stderr == pytest.approx(scipy_stats.sem(BASE), rel=1e-12)


def test_lower_is_better_turns_the_sign():
    better = drift(BASE, CAND, higher_is_better=True)
    worse = drift(BASE, CAND, higher_is_better=False)
    assert worse.sigma == -better.sigma > -math.inf
    assert worse.sigma_interval == (-better.sigma_interval[1], -better.sigma_interval[0])


def test_perplexity_has_the_formulas_of_the_page():
    got = drift(BASE, CAND, "perplexity")
    base, cand = math.exp(-np.mean(BASE)), math.exp(-np.mean(CAND))
    log_stderr = np.std(BASE, ddof=1) / math.sqrt(N)
    assert got.base.point == pytest.approx(base, rel=1e-13)
    assert got.base.stderr == pytest.approx(base * log_stderr, rel=1e-12)
    assert got.candidate.point == pytest.approx(cand, rel=1e-13)
    d = BASE - CAND
    assert got.paired_stderr == pytest.approx(cand * np.std(d, ddof=1) / math.sqrt(N), rel=1e-12)
    p_value = scipy_stats.ttest_rel(BASE, CAND, alternative="greater").pvalue
    assert got.estimate.p_value == pytest.approx(p_value, rel=1e-12)
    half = scipy_stats.t.ppf(0.975, N - 1) * np.std(d, ddof=1) / math.sqrt(N)
    ends = [math.expm1(np.mean(d) + side * half) / log_stderr for side in (-1, 1)]
    assert got.sigma_interval == pytest.approx(tuple(ends), rel=1e-11)


def test_weighted_perplexity_has_the_ratio_estimator_of_the_page():
    got = drift(BASE * WEIGHTS, CAND * WEIGHTS, "weighted_perplexity", weights=WEIGHTS)
    total = WEIGHTS.sum()

    def rate_and_stderr(values):
        rate = values.sum() / total
        residual = values - rate * WEIGHTS
        return rate, math.sqrt(N / (N - 1) * np.sum(residual**2)) / total

    base_rate, base_log_stderr = rate_and_stderr(BASE * WEIGHTS)
    d_rate, d_stderr = rate_and_stderr((BASE - CAND) * WEIGHTS)
    assert got.base.point == pytest.approx(math.exp(-base_rate), rel=1e-13)
    assert got.base.stderr == pytest.approx(math.exp(-base_rate) * base_log_stderr, rel=1e-12)
    assert got.estimate.point == pytest.approx(d_rate, rel=1e-11)
    assert got.estimate.stderr == pytest.approx(d_stderr, rel=1e-11)
    assert got.estimate.method == "paired-t-log-ratio"


def test_bits_per_byte_is_the_log_of_byte_perplexity_in_bits():
    kinds = every_kind()
    bits, perplexity = kinds["bits_per_byte"], kinds["weighted_perplexity"]
    assert bits.base.point == pytest.approx(math.log2(perplexity.base.point), rel=1e-12)
    assert bits.estimate.point * math.log(2) == pytest.approx(perplexity.estimate.point)
    assert bits.estimate.p_value == pytest.approx(perplexity.estimate.p_value, rel=1e-9)


def test_a_binary_metric_counts_flips():
    got = every_kind()["binary"]
    b = int(np.sum((RIGHT == 1) & (CAND_RIGHT == 0)))
    c = int(np.sum((RIGHT == 0) & (CAND_RIGHT == 1)))
    assert got.flips == (b, c)
    assert got.estimate.p_value == mcnemar_mid_p(b, c)
    assert got.paired_stderr == pytest.approx(math.sqrt(b + c - (b - c) ** 2 / N) / N, rel=1e-13)
    errors = drift(1.0 - RIGHT, 1.0 - CAND_RIGHT, higher_is_better=False)
    assert errors.flips == (b, c)
    assert errors.estimate == got.estimate


@pytest.mark.parametrize("kind", KINDS)
def test_sigma_is_the_change_of_the_metric_in_base_stderrs(kind):
    got = every_kind()[kind]
    expected = harness_sigma(
        got.base.point,
        got.base.stderr,
        got.candidate.point,
        higher_is_better=kind in ("mean", "binary"),
    )
    assert got.sigma == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_sigma_lies_in_its_interval_and_the_inverse_map_returns(kind):
    got = every_kind()[kind]
    low, high = got.sigma_interval
    assert low < got.sigma < high
    assert got.drift_of(got.sigma) == pytest.approx(got.estimate.point, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_false_alarm_probability_is_that_of_the_page(kind):
    got = every_kind()[kind]
    for margin in (0.5, 1.0):
        expected, precision = scipy_stats.norm.sf(margin * got.unit / got.estimate.stderr), 1e-9
        if got.flips is not None:  # which come one by one, and leave their mean open
            crossing = math.floor(margin * got.unit * got.documents)
            posterior = scipy_stats.gamma(sum(got.flips) + 1)
            expected, precision = (
                posterior.expect(
                    lambda mean, lead=crossing: scipy_stats.skellam.sf(lead, mean / 2, mean / 2)
                ),
                2e-3,
            )
        assert got.false_alarm_probability(margin) == pytest.approx(expected, rel=precision)


@pytest.mark.parametrize("kind", ["mean", "bits_per_byte"])
def test_swapping_negates_the_drift_exactly_on_linear_scales(kind):
    there, back = every_kind()[kind].estimate, every_kind(CAND, BASE)[kind].estimate
    assert (back.point, back.low, back.high) == (-there.point, -there.high, -there.low)
    assert back.stderr == there.stderr
    assert back.p_value == pytest.approx(1.0 - there.p_value, abs=1e-15)


def test_swapping_negates_sigma_exactly_where_both_have_one_stderr():
    shuffled = RNG.permutation(BASE)
    assert drift(BASE, shuffled).sigma == -drift(shuffled, BASE).sigma


def test_swapping_a_binary_metric_mirrors_everything():
    there, back = drift(RIGHT, CAND_RIGHT), drift(CAND_RIGHT, RIGHT)
    assert back.flips == there.flips[::-1]
    assert back.estimate.point == -there.estimate.point
    assert back.estimate.low == -there.estimate.high
    assert back.estimate.high == -there.estimate.low


@pytest.mark.parametrize("kind", ["perplexity", "weighted_perplexity"])
def test_swapping_negates_the_log_drift_and_turns_the_sign_of_sigma(kind):
    there, back = every_kind()[kind], every_kind(CAND, BASE)[kind]
    assert back.estimate.point == -there.estimate.point
    assert (back.estimate.low, back.estimate.high) == (-there.estimate.high, -there.estimate.low)
    assert there.sigma > 0.0 > back.sigma


finite = st.floats(-50.0, 50.0)


@st.composite
def two_runs(draw):
    n = draw(st.integers(2, 40))
    return draw(arrays(float, n, elements=finite)), draw(arrays(float, n, elements=finite))


@given(two_runs(), st.sampled_from(["mean", "perplexity"]))
def test_swapping_always_turns_the_sign(runs, aggregation):
    base, cand = runs
    there, back = drift(base, cand, aggregation), drift(cand, base, aggregation)
    assert back.estimate.point == -there.estimate.point
    assert (there.sigma > 0.0) == (back.sigma < 0.0)


@given(two_runs(), st.sampled_from(["mean", "perplexity"]), st.sampled_from([0.8, 0.95]))
def test_interval_and_p_value_agree_on_what_is_real(runs, aggregation, confidence):
    got = drift(*runs, aggregation, confidence=confidence)
    alpha = (1.0 - confidence) / 2.0
    low = got.sigma_interval[0]
    p_value = got.estimate.p_value
    if got.unit > 0.0 and abs(p_value - alpha) > 1e-9:
        assert (low > 0.0) == (p_value < alpha)


@given(st.floats(-0.5, 0.5))
def test_a_constant_shift_moves_sigma_by_the_constant_over_the_base_stderr(shift):
    plain, moved = drift(BASE, CAND), drift(BASE, CAND - shift)
    assert moved.sigma - plain.sigma == pytest.approx(shift / plain.unit, abs=1e-10)
    plain, moved = (drift(BASE, CAND - s, "perplexity") for s in (0.0, shift))
    moved_by = (moved.estimate.point - plain.estimate.point) / plain.unit
    assert moved_by == pytest.approx(shift / plain.unit, abs=1e-10)
    assert math.log1p(moved.sigma * moved.unit) == pytest.approx(
        math.log1p(plain.sigma * plain.unit) + shift, abs=1e-11
    )


def test_a_perplexity_said_to_be_better_when_higher_keeps_sigma_and_sign():
    got = drift(BASE, CAND, "perplexity", higher_is_better=True)
    assert got.sigma == pytest.approx((got.base.point - got.candidate.point) / got.base.stderr)
    assert got.sigma < 0.0
    assert got.drift_of(got.sigma) == pytest.approx(got.estimate.point)
    assert got.drift_of(1.01 / got.unit) == math.inf


def test_an_overflowing_perplexity_is_infinite_and_its_drift_is_not():
    got = drift(BASE - 900.0, CAND - 900.0, "perplexity")
    assert got.base.point == got.candidate.point == math.inf
    assert got.sigma == pytest.approx(drift(BASE, CAND, "perplexity").sigma, rel=1e-9)
    worse = drift(BASE, CAND - 900.0, "perplexity")
    assert worse.sigma == worse.sigma_interval[0] == math.inf


def test_the_false_alarm_probability_of_flips_counts_them_one_by_one():
    rng = np.random.default_rng(5)
    base = (rng.random(500) < 0.5).astype(float)
    flipped = rng.permutation(500)[:50]
    candidate = base.copy()
    candidate[flipped] = 1.0 - base[flipped]
    found = drift(base, candidate)
    share, tolerated = 0.1, 0.45 * found.unit * 500
    signs = rng.choice([0, 1, -1], size=(20_000, 500), p=[1 - share, share / 2, share / 2])
    happened = float(np.mean(signs.sum(axis=1) > tolerated))
    assert found.false_alarm_probability(0.45) == pytest.approx(happened, abs=0.012)
