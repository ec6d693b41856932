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

from evalguard.core.moments import moments
from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.drift import estimate_drift


def hall(t, skew, n):
    """Hall (1992), equation for g3 as it stands there, with gamma and n."""
    return t + skew * t**2 / (3 * n**0.5) + skew**2 * t**3 / (27 * n) + skew / (6 * n**0.5)


def sample_with(d, count, words):
    """p-values and ends as functions of the level, of the differing sample and ``count`` more."""
    furthest = np.argmin(d - d.sum() / words.sum() * words)
    times = np.append(np.ones(len(d)), count)  # the last one stands so many times
    d, words = np.append(d, d[furthest]), np.append(words, words[furthest])
    rate, n = np.sum(times * d) / np.sum(times * words), np.sum(times)
    e = d - rate * words
    squares = np.sum(times * e**2)
    stderr = math.sqrt(n / (n - 1) * squares) / np.sum(times * words)
    return rate / stderr, math.sqrt(n) * np.sum(times * e**3) / squares**1.5, n, stderr, rate


Z = scipy_stats.norm.ppf(0.975)


def how_many_more(d, words, z):
    """Twice Cochran's number over n, of all but the furthest, less by the other tail."""
    e = d - d.sum() / words.sum() * words
    others = np.delete(np.arange(len(d)), np.argmin(e))
    rest, carried = d[others], words[others]
    about = rest - rest.sum() / carried.sum() * carried
    skew_over_root = min(0.0, np.sum(about**3) / np.sum(about**2) ** 1.5)
    one_sided = max(0.0, 1.0 - np.max(e) / -np.min(e[others]))
    return min(4.0, 50.0 * skew_over_root**2 * one_sided * max(1.0, z / Z) ** 4)


def naive_p(d, words=None):
    """The p-value of the documents that differ, by its definition."""
    words = np.ones(len(d)) if words is None else words
    d, words = d[d != 0.0], words[d != 0.0]

    def largest(z):
        t, skew, n, *_ = sample_with(d, 0.0, words)
        found = [scipy_stats.t.sf(hall(t, skew, n), n - 1)]
        t, skew, n, *_ = sample_with(d, how_many_more(d, words, z), words)
        return max(*found, scipy_stats.t.sf(hall(t, skew, n), n - 1), scipy_stats.t.sf(t, n - 1))

    if largest(Z) >= 0.025:
        return largest(Z)
    z = optimize.brentq(lambda z: largest(z) - scipy_stats.norm.sf(z), Z, 37.0, xtol=1e-13)
    return scipy_stats.norm.sf(z)


@pytest.mark.parametrize("draw", ["normal", "standard_t"])
def test_symmetric_documents_have_nothing_to_correct(draw):
    rng = np.random.default_rng(1)
    for n in (200, 400):
        d = 0.1 + (rng.normal(size=n) if draw == "normal" else rng.standard_t(3, n))
        if draw == "standard_t":
            d = np.concatenate([d, 0.2 - d])
        got = drift(d)
        assert got.plain is None
        test = scipy_stats.ttest_1samp(d, 0.0, alternative="greater")
        low, high = scipy_stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
        expected = (low, high, test.pvalue)
        got = got.estimate
        assert (got.low, got.high, got.p_value) == pytest.approx(expected, rel=1e-9)
        assert got.method == got.interval_method == "paired-t"


def test_a_skewness_that_normal_documents_often_have_is_no_tail():
    rng, n = np.random.default_rng(8), 100
    seen = {True: 0, False: 0}
    for d in rng.normal(size=(200, n)):
        error = math.sqrt(6.0 * (n - 2) / (n + 1) / (n + 3))
        tail = abs(scipy_stats.skew(d)) > 1.5 * error
        assert (drift(d).plain is not None) == tail
        seen[tail] += 1
    assert 15 < seen[True] < 50  # 13% of 200


@pytest.mark.parametrize("shift", [-0.1, 0.0, 0.1, 0.4, 2.0])
def test_a_tail_of_gains_has_the_largest_p_value_of_its_own_level(shift):
    d = GAINS + shift
    got = corrected(d)
    plain = scipy_stats.ttest_1samp(d, 0.0, alternative="greater")
    assert got.p_value == pytest.approx(max(naive_p(d), plain.pvalue), rel=1e-7)
    assert got.stderr == pytest.approx(scipy_stats.sem(d), rel=1e-12)  # the page's


def test_its_lower_end_is_that_of_the_level_of_the_interval():
    got, ones = corrected(GAINS), np.ones(N)
    _, skew, n, stderr, rate = sample_with(GAINS, how_many_more(GAINS, ones, Z), ones)
    critical = scipy_stats.t.ppf(0.975, n - 1)
    t_end = optimize.brentq(lambda t: hall(t, skew, n) - critical, -80.0, 80.0, xtol=1e-13)
    by_hall = rate - t_end * stderr
    assert got.low == pytest.approx(min(by_hall, rate - critical * stderr), rel=1e-9)
    assert got.low < scipy_stats.ttest_1samp(GAINS, 0.0).confidence_interval(0.95)[0]


def test_a_tail_of_losses_moves_the_upper_end_and_no_p_value():
    got = corrected(SKEWED)
    low, _ = scipy_stats.ttest_1samp(SKEWED, 0.0).confidence_interval(0.95)
    assert got.method == got.interval_method == "paired-t-skew"
    assert got.low == pytest.approx(low, rel=1e-9)
    assert got.high == pytest.approx(-corrected(-SKEWED).low, rel=1e-12)
    test = scipy_stats.ttest_1samp(SKEWED, 0.0, alternative="greater")
    assert got.p_value == pytest.approx(test.pvalue, rel=1e-9)


def test_identical_documents_hide_no_tail():
    d = np.concatenate([GAINS + 0.2, np.zeros(940)])
    got = corrected(d)
    assert got.p_value == pytest.approx(naive_p(d), rel=1e-7)
    assert got.p_value == pytest.approx(corrected(GAINS + 0.2).p_value, rel=0.02)


def test_texts_count_with_their_words():
    words = np.random.default_rng(9).integers(5, 60, N).astype(float)
    d = words * (GAINS + 0.1)
    got = corrected(d, words)
    assert got.p_value == pytest.approx(naive_p(d, words), rel=1e-7)


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


def answers_in_clusters(lost, won, *, others=100):
    """Drift of 0/1 answers, of clusters of 6 that lose or win so many each."""
    sums = np.concatenate([-lost, won, np.zeros(others)]).astype(int)
    base, candidate = (
        np.concatenate([np.arange(6) < max(0, sign * one) for one in sums]).astype(float)
        for sign in (-1, 1)
    )
    labels = tuple(np.repeat(np.arange(len(sums)), 6).astype(str).tolist())
    run = paired(base, candidate, clusters=labels, cluster_field="passage")
    return estimate_drift(run, confidence=0.95)


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize(("lost", "won"), [(12, 4), (25, 5), (9, 2), (60, 20)])
def test_answers_that_are_won_as_one_by_one_as_they_are_lost_have_no_tail(lost, won, size):
    got = answers_in_clusters(np.full(lost, size), np.full(won, size))
    assert got.plain is None
    assert got.estimate.p_value < scipy_stats.binomtest(won, lost + won).pvalue


def test_clusters_that_win_all_their_answers_where_others_lose_one_are_a_tail():
    lost, won = np.ones(60), np.full(6, 6)
    got = answers_in_clusters(lost, won)
    assert got.plain is not None
    assert got.estimate.p_value > got.plain.p_value
