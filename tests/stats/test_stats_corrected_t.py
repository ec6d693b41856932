"""Skewed and very unequal documents: the more careful of t and of a corrected t decides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import paired
from scipy import optimize
from scipy import stats as scipy_stats
from skewed_documents import GAINS, SKEWED, N, corrected, drift

from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.moments import moments
from evalguard.stats.skewed.corrected_t import find_tail


def hall(t, skew, n):
    """Hall (1992), equation for g3 as it stands there, with gamma and n."""
    return t + skew * t**2 / (3 * n**0.5) + skew**2 * t**3 / (27 * n) + skew / (6 * n**0.5)


def more_of(d, furthest, count=2):
    """Two more where Cochran's rule asks for more documents than there are, as of these."""
    return np.append(d, np.full(count, d[furthest]))


def halls_end(d, side):
    """The end of Hall's interval on this side, by root finding."""
    n, skew = len(d), scipy_stats.skew(d)
    critical = scipy_stats.t.ppf(0.975, n - 1)
    t_end = optimize.brentq(lambda t: hall(t, skew, n) + side * critical, -80.0, 80.0, xtol=1e-13)
    return np.mean(d) - t_end * scipy_stats.sem(d)


@pytest.mark.parametrize("draw", ["normal", "standard_t"])
def test_symmetric_documents_have_nothing_to_correct(draw):
    rng = np.random.default_rng(1)
    for n in (200, 400):
        d = 0.1 + (rng.normal(size=n) if draw == "normal" else rng.standard_t(3, n))
        got = drift(d)
        assert got.plain is None
        test = scipy_stats.ttest_1samp(d, 0.0, alternative="greater")
        low, high = scipy_stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
        expected = (low, high, test.pvalue)
        got = got.estimate
        assert (got.low, got.high, got.p_value) == pytest.approx(expected, rel=1e-9)
        assert got.method == got.interval_method == "paired-t"


def test_a_single_document_far_out_among_symmetric_ones_is_a_tail_only_by_four_times_the_other():
    d = np.random.default_rng(8).normal(size=100)
    other = np.max(d)
    for times, tail in ((3.5, False), (5.0, True)):
        d[0] = -times * other
        assert (find_tail(d, None) is not None) is tail


def test_a_tail_of_losses_reaches_as_far_as_halls_interval_with_two_more_such_documents():
    got = corrected(SKEWED)
    low, high = scipy_stats.ttest_1samp(SKEWED, 0.0).confidence_interval(0.95)
    assert got.method == got.interval_method == "paired-t-skew"
    assert got.low == pytest.approx(low, rel=1e-9)  # the plain end lies lower here
    expected = halls_end(more_of(SKEWED, np.argmax(SKEWED)), 1.0)
    assert got.high == pytest.approx(expected, rel=1e-9)
    assert got.high > halls_end(SKEWED, 1.0) > high
    test = scipy_stats.ttest_1samp(SKEWED, 0.0, alternative="greater")
    assert got.p_value == pytest.approx(test.pvalue, rel=1e-9)


def test_a_tail_of_gains_has_the_p_value_of_hall_with_two_more_such_documents():
    got = corrected(GAINS)
    more = more_of(GAINS, np.argmin(GAINS))
    t = scipy_stats.ttest_1samp(more, 0.0).statistic
    expected = scipy_stats.t.sf(hall(t, scipy_stats.skew(more), N + 2), N + 1)
    assert got.p_value == pytest.approx(expected, rel=1e-9)
    assert got.low == pytest.approx(halls_end(more, -1.0), rel=1e-9)
    plain = scipy_stats.ttest_1samp(GAINS, 0.0, alternative="greater")
    assert got.p_value > 1.5 * plain.pvalue
    assert got.stderr == pytest.approx(scipy_stats.sem(GAINS), rel=1e-12)  # the page's


def test_of_a_tail_that_more_documents_show_one_more_is_enough_and_of_longer_samples_none():
    rng = np.random.default_rng(6)
    for n, count in ((100, 2), (300, 1), (1000, 0)):
        d = 0.2 - scipy_stats.gamma.ppf((rng.permutation(n) + 0.5) / n, 0.4)
        skew = scipy_stats.skew(d)
        assert int(50 * skew**2 > n) + int(25 * skew**2 > n) == count
        more = more_of(d, np.argmin(d), count)
        t = scipy_stats.ttest_1samp(more, 0.0).statistic
        expected = scipy_stats.t.sf(hall(t, scipy_stats.skew(more), n + count), n + count - 1)
        plain = scipy_stats.ttest_1samp(d, 0.0, alternative="greater").pvalue
        assert corrected(d).p_value == pytest.approx(max(expected, plain), rel=1e-9)


def test_two_more_texts_count_with_their_words():
    words = np.random.default_rng(9).integers(5, 60, N).astype(float)
    d = words * GAINS
    got = corrected(d, words)
    rate = d.sum() / words.sum()
    furthest = np.argmin(d - rate * words)
    values, weights = more_of(d, furthest), more_of(words, furthest)
    more = moments(values, weights)
    residuals = values - more.point * weights
    t, n = more.point / more.stderr, N + 2
    by_hall = scipy_stats.t.sf(hall(t, scipy_stats.skew(residuals), n), n - 1)
    assert got.p_value == pytest.approx(max(by_hall, scipy_stats.t.sf(t, n - 1)), rel=1e-9)


def test_clusters_are_the_documents_of_a_long_tail():
    labels = tuple(np.repeat(np.arange(N), 3).astype(str))
    got = corrected(np.repeat(GAINS, 3), clusters=labels)
    alone = corrected(GAINS)
    assert got.method == "cluster-t-skew"
    assert (got.low, got.p_value) == pytest.approx((alone.low, alone.p_value), rel=1e-9)


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
    assert drift(d, np.full(25, 7.0)).plain is None


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
    got, level = run.estimate, (1.0 - confidence) / 2.0
    assert (got.low > 0.0) == (got.p_value < level) or got.p_value == pytest.approx(level)
    if run.plain is not None:
        assert got.low <= run.plain.low
        assert got.high >= run.plain.high
        assert got.p_value >= run.plain.p_value
    mirrored = drift(-d, weights, confidence=confidence).estimate
    assert (mirrored.low, mirrored.high) == pytest.approx((-got.high, -got.low), rel=1e-9)


@given(st.integers(0, 100), st.floats(-5.0, 5.0))
def test_a_constant_moves_the_interval_and_nothing_else(seed, constant):
    d = np.random.default_rng(seed).lognormal(0.0, 1.0, 40)
    one, moved = drift(d).estimate, drift(d + constant).estimate
    assert moved.method == one.method
    assert (moved.low - constant, moved.high - constant) == pytest.approx(
        (one.low, one.high), abs=1e-8
    )


@given(st.integers(0, 100))
def test_the_order_of_the_documents_changes_nothing(seed):
    rng = np.random.default_rng(seed)
    d, weights = -rng.lognormal(0.0, 1.5, 50), rng.integers(1, 5, 50).astype(float)
    order = rng.permutation(50)
    assert drift(d, weights).estimate == drift(d[order], weights[order]).estimate


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_drift_beyond_all_scatter_has_a_p_value(sign):
    d = np.full(40, sign)
    d[0] = sign * (1.0 + 1e-15)  # t is about 1e16, its cube about 1e48
    got = compare_scores(paired(np.zeros(40), -1e120 * d))
    assert got.p_value == pytest.approx(0.0 if sign > 0.0 else 1.0)


def test_the_plain_t_test_is_a_companion_and_a_caveat_says_its_ends():
    got = compare_scores(paired(np.zeros(N), -GAINS))
    assert got.method == "paired-t-skew"
    (beside,) = (test for test in got.companions if test.method == "paired-t")
    expected = drift(GAINS)
    assert beside.p_value == expected.plain.p_value
    assert beside.sigma_interval == pytest.approx(
        (expected.sigma_of(expected.plain.low), expected.sigma_of(expected.plain.high))
    )
    (caveat,) = (text for text in got.caveats if text.startswith("skewed differences"))
    assert "interval and p are corrected for it (plain t:" in caveat
    assert "paired t, corrected for skewed documents" in got.reason
