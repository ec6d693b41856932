"""Fewer than 20 clusters: whole clusters change sign."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from clustered_documents import LABELS, D, N, clustered
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.pairing import pair
from evalguard.errors import MisalignedRunsError
from evalguard.stats.clusters import cluster_stderr, cluster_sums, sign_flip_estimate
from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.drift import estimate_drift


def few(count, *, drift=0.3, seed=1):
    rng = np.random.default_rng(seed)
    members = np.repeat(np.arange(count), rng.integers(1, 6, count))
    d = rng.normal(drift, 0.5, count)[members] + rng.normal(0.0, 0.1, len(members))
    return d, tuple(str(m) for m in members)


@given(st.integers(2, 9), st.integers(0, 50), st.sampled_from([0.5, 0.8, 0.95]))
def test_the_interval_holds_the_drifts_that_no_sign_flip_rejects(count, seed, confidence):
    d, labels = few(count, seed=seed)
    weights = np.random.default_rng(seed).integers(1, 30, len(d)).astype(float)
    sums = cluster_sums(d, weights, labels)
    got = sign_flip_estimate(d, weights, 1.0, sums, confidence=confidence)
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=count)))

    def least_p(delta):
        left = sums.values - delta * sums.weights
        flipped = signs @ left
        tolerance = 1e-9 * np.sum(np.abs(left))
        above = np.mean(flipped >= left.sum() - tolerance)
        return min(above, np.mean(flipped <= left.sum() + tolerance))

    level = (1.0 - confidence) / 2.0
    for end, out in ((got.low, -1.0), (got.high, 1.0)):
        if math.isinf(end):
            assert 2.0**-count > level
            assert least_p(out * 1e6) > level
        else:
            step = out * 1e-6 * max(1.0, abs(end))
            assert least_p(end - step) > level
            assert least_p(end + step) <= level
    assert got.low <= got.point <= got.high


def test_few_clusters_decide_by_sign_flips():
    d, labels = few(12)
    got = compare_scores(clustered(d, labels=labels))
    assert (got.method, got.clusters) == ("cluster-sign-flip", 12)
    assert got.significant == (got.p_value <= 0.025)
    assert any("fewer than 20" in text for text in got.caveats)
    assert "sign flips of whole clusters" in got.reason


@pytest.mark.parametrize("count", [8, 12])
def test_skewed_clusters_fail_less_often_than_by_their_signs(count):
    """Gains of lognormal(2), an unchanged candidate: signs alone call 40% really worse."""
    rng, runs = np.random.default_rng(count), 120
    signs = decided = 0
    for _ in range(runs):
        d = np.repeat(math.exp(2.0) - rng.lognormal(0.0, 2.0, count), 3)
        labels = tuple(str(m) for m in np.repeat(np.arange(count), 3))
        drift = estimate_drift(clustered(d, labels=labels), confidence=0.95)
        signs += (drift.plain or drift.estimate).p_value <= 0.025
        decided += drift.estimate.p_value <= 0.025
    assert signs >= 0.3 * runs
    assert decided <= 0.75 * signs


def test_clusters_corrected_for_skew_say_so_beside_their_signs():
    d = np.repeat([0.3, 0.2, 0.25, 0.35, 0.2, 0.3, 0.25, 0.3, 0.35, 0.2, 0.25, -0.9], 2)
    got = compare_scores(clustered(d, labels=tuple(str(m) for m in np.repeat(np.arange(12), 2))))
    assert got.method == "cluster-sign-flip-skew"
    assert [one.method for one in got.companions] == ["cluster-sign-flip"]
    assert got.companions[0].p_value < got.p_value
    assert any("fewer than 20" in text for text in got.caveats)
    assert any("(sign flips: " in text for text in got.caveats)
    assert "sign flips of whole clusters" in got.reason


def test_five_clusters_are_too_few_for_an_interval_and_are_said_to_be():
    d, labels = few(5)
    got = compare_scores(clustered(d, labels=labels), margin=10.0)
    assert got.outcome == "undecided"
    assert got.sigma_interval == (-math.inf, math.inf)
    assert any("too few for any interval" in text for text in got.caveats)


def test_one_cluster_gives_no_number():
    got = compare_scores(clustered(labels=("all",) * N))
    assert got.outcome == "failed"
    assert "share one passage" in got.reason


def test_a_model_against_itself_is_bit_identical_in_clusters_too():
    for labels in (LABELS, few(5)[1]):
        got = compare_scores(clustered(np.zeros(len(labels)), labels=labels))
        assert (got.outcome, got.bit_identical, got.p_value) == ("unchanged", True, 1.0)
        assert got.companions == ()


def test_clusters_that_differ_between_the_sides_are_refused():
    run = clustered()
    other = clustered(labels=("else", *LABELS[1:]))
    with pytest.raises(MisalignedRunsError, match=r"clusters differ in 1 of .* doc_id 0"):
        pair(run.base, other.candidate)
    with pytest.raises(MisalignedRunsError, match="only one side"):
        pair(run.base, clustered(labels=()).candidate)


@pytest.mark.parametrize("count", [12, 60])
@pytest.mark.parametrize("ratio", [False, True])
def test_95_percent_intervals_of_unequal_clusters_hold_the_truth(count, ratio):
    rng = np.random.default_rng(count)
    runs, truth, held, rejected = 1_000, 0.05, 0, 0
    for _ in range(runs):
        members = np.repeat(np.arange(count), rng.integers(1, 9, count))
        n = len(members)
        weights = rng.integers(5, 60, n).astype(float) if ratio else np.ones(n)
        shared = rng.normal(0.0, 0.3, count)[members]
        noise = weights * (shared + rng.normal(0.0, 0.2, n))
        base = np.zeros(n)
        labels = tuple(members.astype(str))
        kind = "weighted_perplexity" if ratio else "mean"
        for drift in (truth, 0.0):
            run = clustered(noise + drift * weights, kind, base, labels, weights if ratio else None)
            estimate = estimate_drift(run, confidence=0.95).estimate
            if drift:
                held += estimate.low <= truth <= estimate.high
            else:
                rejected += estimate.p_value <= 0.05
    assert 0.935 <= held / runs <= 0.975
    assert rejected / runs <= 0.055 + 2.0 * math.sqrt(0.05 * 0.95 / runs)


def test_the_cluster_stderr_needs_no_documents():
    sums = cluster_sums(D, None, LABELS)
    assert cluster_stderr(sums) == estimate_drift(clustered(), confidence=0.9).estimate.stderr
