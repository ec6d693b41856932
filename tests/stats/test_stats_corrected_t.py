"""Beside the t interval: a corrected one for skewed or very unequal documents, never narrower."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import paired
from scipy import optimize
from scipy import stats as scipy_stats

from evalguard.stats.compare import compare_scores
from evalguard.stats.difference_shape import skewness
from evalguard.stats.drift import estimate_drift
from evalguard.stats.probability import moments

RNG = np.random.default_rng(41)
N = 60
SKEWED = RNG.lognormal(-1.0, 1.2, N) - 0.3


def drift(d, weights=None, *, confidence=0.95, clusters=()):
    kind = "mean" if weights is None else "weighted_perplexity"
    fields = {"clusters": clusters, "cluster_field": "passage"} if clusters else {}
    run = paired(np.zeros(len(d)), -d, kind, weights=weights, **fields)
    return estimate_drift(run, confidence=confidence)


def corrected(d, weights=None, **how):
    found = drift(d, weights, **how).corrected
    assert found is not None
    return found


def hall(t, skew, n):
    """Hall (1992), equation for g3 as it stands there, with gamma and n."""
    return t + skew * t**2 / (3 * n**0.5) + skew**2 * t**3 / (27 * n) + skew / (6 * n**0.5)


def test_documents_without_skewness_have_nothing_to_correct():
    d = np.random.default_rng(1).normal(0.1, 1.0, 400)
    assert drift(d).corrected is None


@pytest.mark.parametrize("n", [20, N])  # from 20 documents that differ on
def test_scipys_t_interval_and_p_value_decide_however_skewed_the_documents_are(n):
    got = drift(SKEWED[:n]).estimate
    test = scipy_stats.ttest_1samp(SKEWED[:n], 0.0, alternative="greater")
    low, high = scipy_stats.ttest_1samp(SKEWED[:n], 0.0).confidence_interval(0.95)
    assert (got.low, got.high, got.p_value) == pytest.approx((low, high, test.pvalue), rel=1e-12)
    assert got.method == got.interval_method == "paired-t"


def test_skewed_losses_reach_as_far_as_halls_transformation():
    got, skew = corrected(SKEWED), skewness(SKEWED, None).value
    low, high = scipy_stats.ttest_1samp(SKEWED, 0.0).confidence_interval(0.95)
    assert got.method == got.interval_method == "paired-t-skew"
    assert got.low == pytest.approx(low, rel=1e-12)  # the plain end lies lower here
    assert got.high > high
    critical = scipy_stats.t.ppf(0.975, N - 1)
    t_end = optimize.brentq(lambda t: hall(t, skew, N) + critical, -60.0, 10.0, xtol=1e-13)
    assert got.high == pytest.approx(got.point - t_end * got.stderr, rel=1e-9)
    assert got.p_value == pytest.approx(
        scipy_stats.ttest_1samp(SKEWED, 0.0, alternative="greater").pvalue, rel=1e-9
    )


def test_skewed_gains_look_less_like_losses_once_corrected():
    gains = -SKEWED + 2.0 * np.mean(SKEWED)
    got, skew = corrected(gains), skewness(gains, None).value
    plain = scipy_stats.ttest_1samp(gains, 0.0, alternative="greater")
    assert got.p_value > 1.5 * plain.pvalue
    t = plain.statistic
    assert got.p_value == pytest.approx(scipy_stats.t.sf(hall(t, skew, N), N - 1), rel=1e-9)


def naive_cr2(values, weights):
    """CR2 and Satterthwaite's df of the weighted mean by their matrices, one row a unit."""
    n, total = len(values), weights.sum()
    shares = weights / total
    residuals = values - values.sum() / total * weights
    variance = np.sum(residuals**2 / (1 - shares)) / total**2
    # residuals / sqrt(1 - h) = A r for independent r of variance w
    a = np.diag((1 - shares) ** -0.5) @ (np.eye(n) - np.outer(weights, np.ones(n)) / total)
    covariance = a @ np.diag(weights) @ a.T
    return math.sqrt(variance), np.trace(covariance) ** 2 / np.trace(covariance @ covariance)


def test_unequal_texts_have_the_cr2_interval_of_bell_and_mccaffrey():
    rng = np.random.default_rng(3)
    weights = np.ceil(rng.lognormal(4.0, 0.8, 60))  # as 20 or more of one length
    d = weights * rng.normal(0.05, 0.1, 60)
    got = corrected(d, weights)
    stderr, df = naive_cr2(d, weights)
    half = scipy_stats.t.ppf(0.975, df) * stderr
    assert got.method == "paired-t-log-ratio-cr2"
    assert got.high == pytest.approx(got.point + half, rel=1e-9)
    assert got.low == pytest.approx(got.point - half, rel=1e-9)
    assert got.p_value == pytest.approx(scipy_stats.t.sf(got.point / stderr, df), rel=1e-9)
    assert got.stderr == pytest.approx(moments(d, weights).stderr, rel=1e-12)  # the page's


def test_texts_of_one_length_have_nothing_to_correct():
    d = np.random.default_rng(4).normal(0.0, 1.0, 25)
    assert drift(d, np.full(25, 7.0)).corrected is None


def test_one_text_that_alone_has_words_is_no_reason_to_fail():
    got = compare_scores(
        paired([-1.0, -2.0, 0.0], [-1.5, -2.0, 0.0], "weighted_perplexity", weights=[9.0, 0.0, 0.0])
    )
    assert got.outcome != "failed"


def test_a_giant_cluster_widens_the_interval_of_its_t_test():
    rng = np.random.default_rng(5)
    members = np.repeat(np.arange(30), [60, *[3] * 29])
    d = rng.normal(0.0, 0.5, 30)[members] + rng.normal(0.1, 0.3, len(members))
    got = corrected(d, clusters=tuple(members.astype(str)))
    assert got.method.startswith("cluster-t")
    assert "-cr2" in got.method
    assert got.high - got.low > 2.0 * 1.5 * scipy_stats.t.ppf(0.975, 29) * got.stderr


@given(st.integers(0, 300), st.sampled_from([0.8, 0.95, 0.99]), st.booleans())
def test_interval_and_p_value_never_contradict_each_other(seed, confidence, ratio):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 80))
    d = rng.choice([-1.0, 1.0]) * rng.lognormal(0.0, 1.5, n) - rng.normal(0.0, 1.0)
    weights = np.ceil(rng.lognormal(2.0, 1.5, n)) if ratio else None
    run = drift(d, weights, confidence=confidence)
    got = run.corrected or run.estimate
    level = (1.0 - confidence) / 2.0
    assert (got.low > 0.0) == (got.p_value < level) or got.p_value == pytest.approx(level)
    turned = drift(-d, weights, confidence=confidence)
    mirrored = turned.corrected or turned.estimate
    assert (mirrored.low, mirrored.high) == pytest.approx((-got.high, -got.low), rel=1e-9)


@given(st.integers(0, 100), st.floats(-5.0, 5.0))
def test_a_constant_moves_the_interval_and_nothing_else(seed, constant):
    d = np.random.default_rng(seed).lognormal(0.0, 1.0, 40)
    runs = drift(d), drift(d + constant)
    one, moved = (run.corrected or run.estimate for run in runs)
    assert moved.method == one.method
    assert (moved.low - constant, moved.high - constant) == pytest.approx(
        (one.low, one.high), abs=1e-8
    )


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_drift_beyond_all_scatter_has_a_p_value(sign):
    d = np.full(40, sign)
    d[0] = sign * (1.0 + 1e-15)  # t is about 1e16, its cube about 1e48
    got = compare_scores(paired(np.zeros(40), -1e120 * d))
    assert got.p_value == pytest.approx(0.0 if sign > 0.0 else 1.0)


def test_the_corrected_interval_is_a_companion_and_a_caveat_says_its_ends():
    got = compare_scores(paired(np.zeros(N), -SKEWED))
    (beside,) = (test for test in got.companions if test.method == "paired-t-skew")
    expected = drift(SKEWED)
    assert beside.sigma_interval is not None
    assert beside.sigma_interval == pytest.approx(
        (expected.sigma_of(expected.corrected.low), expected.sigma_of(expected.corrected.high))
    )
    (caveat,) = (text for text in got.caveats if text.startswith("skewed differences"))
    assert "corrected for that it runs from" in caveat
    assert got.method == "paired-t"
