"""All metrics together: the joint null against a naive one, its size, its power."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from document_drifts import drift_of
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import paired
from scipy import stats

from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.joint_null import across_tasks, crossing_chance
from evalguard.stats.sign_flip import sign_flip

FEW = [0.5, -0.2, 0.0, 0.7, 0.3, -0.1]
OTHER = [0.1, 0.4, 0.0, 0.6, -0.3, 0.2]


def judged(*metrics, **options):
    return across_tasks(metrics, **{"confidence": 0.95, **options})


def naive(columns, weights):
    """The three statistics and p-values by every sign pattern; columns: metric -> contributions."""
    columns = np.array(columns)

    def of(signs):
        z = (columns * signs).sum(axis=1) / np.sqrt((columns**2).sum(axis=1))
        fisher = -2.0 * sum(math.log(stats.norm.sf(value)) for value in z)
        return float(weights @ (columns * signs).sum(axis=1)), float(z.max()), fisher

    patterns = itertools.product((1.0, -1.0), repeat=columns.shape[1])
    all_of = np.array([of(np.array(signs)) for signs in patterns])  # the first: no sign flipped
    at_least = (all_of[:, None, :] >= all_of[None, :, :] - 1e-9).mean(axis=0)
    return all_of[0], at_least[0], (at_least.min(axis=1) <= at_least[0].min() + 1e-12).mean()


def test_few_documents_agree_with_every_sign_pattern_tried_by_hand():
    first, second = drift_of(FEW), drift_of(OTHER, metric="acc_norm", unit=2.0)
    got = judged(first, second)
    columns = [np.array(FEW) / 6.0, np.array(OTHER) / 12.0]
    (pooled, largest, fisher), p_values, overall = naive(columns, np.array([0.5, 0.5]))
    assert got.pooled_sigma == pytest.approx(pooled, rel=1e-12)
    assert (got.max_z, got.fisher) == pytest.approx((largest, fisher), rel=1e-8)
    expected = (got.pooled_p_value, got.max_z_p_value, got.fisher_p_value)
    assert expected == pytest.approx(tuple(p_values), abs=1e-15)
    assert got.p_value == pytest.approx(overall, abs=1e-15)
    assert (got.resamples, got.seed, got.n, got.n_moved) == (None, None, 6, 5)
    assert (got.tasks, got.max_z_metric) == (1, ("a", "none", "acc"))


def test_the_chance_that_any_metric_crosses_its_margin_is_that_of_every_sign_pattern():
    columns = np.array([np.array(FEW) / 6.0, np.array(OTHER) / 12.0])
    drifts = columns @ np.array(list(itertools.product((1.0, -1.0), repeat=6))).T
    expected = np.mean((drifts[0] > 0.15) | (drifts[1] > 0.06))
    metrics = drift_of(FEW), drift_of(OTHER, metric="acc_norm", unit=2.0)
    assert crossing_chance(metrics, (0.15, 0.06)) == pytest.approx(expected, abs=1e-15)
    same = drift_of(FEW), drift_of(FEW, metric="acc_norm")  # the same twice counts once
    assert crossing_chance(same, (0.15, 0.15)) == crossing_chance(same[:1], (0.15,))


def test_documents_of_two_tasks_have_signs_of_their_own():
    got = judged(drift_of(FEW), drift_of(OTHER, task="b"))
    columns = [[*np.array(FEW) / 6, *np.zeros(6)], [*np.zeros(6), *np.array(OTHER) / 6]]
    _, p_values, overall = naive(columns, np.array([0.5, 0.5]))
    found = (got.pooled_p_value, got.max_z_p_value, got.fisher_p_value, got.p_value)
    assert found == pytest.approx((*p_values, overall), abs=1e-15)
    assert (got.n, got.n_moved, got.tasks) == (12, 10, 2)


def test_one_metric_twice_counts_as_one():
    d = np.random.default_rng(1).normal(0.1, 1.0, 300)
    alone = sign_flip(d).p_value
    twice = judged(drift_of(d), drift_of(d, metric="copy"))
    spread = 4.0 * math.sqrt(alone * (1 - alone) / 9_999)
    for p_value in (twice.pooled_p_value, twice.max_z_p_value, twice.fisher_p_value, twice.p_value):
        assert p_value == pytest.approx(alone, abs=2.0 * spread)
    assert twice.pooled_sigma == pytest.approx(float(np.mean(d)), rel=1e-12)
    assert twice.pooled_stderr == pytest.approx(float(stats.sem(d)), rel=1e-12)


def test_a_document_that_two_tasks_share_has_one_sign():
    hashes = tuple(f"document {i}" for i in range(6))
    shared = judged(drift_of(FEW, doc_hashes=hashes), drift_of(FEW, task="b", doc_hashes=hashes))
    once = judged(drift_of(FEW), drift_of(FEW, metric="copy"))
    assert shared.n == 6
    assert shared.p_value == once.p_value
    assert shared.pooled_stderr == pytest.approx(once.pooled_stderr, rel=1e-12)
    unknown = judged(drift_of(FEW, doc_hashes=("",) * 6), drift_of(FEW, "b", doc_hashes=("",) * 6))
    assert unknown.n == 12


def test_clusters_change_sign_as_a_whole():
    labels = ("x", "x", "y", "y", "z", "z")
    got = judged(drift_of(FEW, clusters=labels), drift_of(OTHER, metric="b", clusters=labels))
    sums = [np.add.reduceat(np.array(d), [0, 2, 4]) / 6 for d in (FEW, OTHER)]
    _, p_values, overall = naive(sums, np.array([0.5, 0.5]))
    assert (got.pooled_p_value, got.p_value) == pytest.approx((p_values[0], overall), abs=1e-15)
    assert got.n == 3


def test_tasks_count_alike_however_many_metrics_they_have():
    got = judged(drift_of([1.0, 1.0]), drift_of([3.0, 3.0], metric="b"), drift_of([6.0, 6.0], "c"))
    assert got.pooled_sigma == pytest.approx((2.0 + 6.0) / 2)
    assert got.pooled_interval == pytest.approx((4.0, 4.0))


def test_the_pooled_interval_is_that_of_the_mean_of_independent_means():
    rng = np.random.default_rng(3)
    one, two = rng.normal(0.2, 1.0, 40), rng.normal(0.1, 3.0, 25)
    got = judged(drift_of(one), drift_of(two, "b"))
    welch = stats.ttest_ind(one, -two, equal_var=False)  # the difference to -two is twice the mean
    interval = welch.confidence_interval(0.95)
    assert got.pooled_interval == pytest.approx((interval.low / 2, interval.high / 2), rel=1e-10)
    assert got.pooled_df == pytest.approx(float(welch.df), rel=1e-10)


def test_contributions_add_up_to_the_drift_and_its_standard_error():
    rng = np.random.default_rng(5)
    weights = rng.integers(5, 90, 40).astype(float)
    base = -weights * rng.gamma(4.0, 0.5, 40)
    candidate = base - rng.normal(0.1, 0.3, 40)
    for aggregation, own in (("mean", None), ("perplexity", None), ("bits_per_byte", weights)):
        found = compare_documents(paired(base, candidate, aggregation, weights=own))
        (part,) = found.contributions.parts
        assert found.contributions.total == pytest.approx(math.fsum(part.values), rel=1e-12)
        assert part.residuals.sum() == pytest.approx(0.0, abs=1e-12)
        sigma, unit = found.comparison.sigma, found.contributions.unit
        drift = sigma * unit if aggregation != "perplexity" else math.log1p(sigma * unit)
        assert found.contributions.total == pytest.approx(drift, rel=1e-12)


def test_nothing_that_differs_is_no_evidence():
    got = judged(drift_of([0.0] * 5), drift_of([0.0] * 5, "b"))
    assert (got.p_value, got.pooled_sigma, got.pooled_interval) == (1.0, 0.0, (0.0, 0.0))
    assert (got.n_moved, got.max_z, got.fisher) == (0, 0.0, 0.0)


def test_the_largest_z_is_that_of_a_metric_in_which_something_differs():
    better = [-0.5, -0.2, -0.7, -0.3]
    got = judged(drift_of([0.0] * 4, metric="same"), drift_of(better, metric="better"))
    assert got.max_z_metric == ("a", "none", "better")
    assert got.max_z == pytest.approx(sum(better) / math.sqrt(sum(d * d for d in better)))
    assert got.max_z_p_value == 1.0


def test_metrics_without_a_unit_are_refused():
    with pytest.raises(ValueError, match="each with a standard error"):
        judged(drift_of(FEW), drift_of(FEW, "b", unit=0.0))
    with pytest.raises(ValueError, match="needs metrics"):
        judged()


@given(st.randoms(use_true_random=False))
def test_the_order_of_documents_and_metrics_changes_nothing(random):
    rng = np.random.default_rng(11)
    metrics = [rng.normal(0.1, 1.0, 30), rng.integers(-1, 2, 30).astype(float)]
    expected = judged(drift_of(metrics[0]), drift_of(metrics[1], metric="b"), resamples=199)
    order = list(range(30))
    random.shuffle(order)
    moved = [drift_of(metrics[1][order], metric="b"), drift_of(metrics[0][order])]
    got = judged(*moved, resamples=199)
    rounded = [
        replace(found, pooled_sigma=0.0, pooled_stderr=0.0, pooled_interval=(0, 0), pooled_df=0.0)
        for found in (expected, got)
    ]
    assert rounded[0] == rounded[1]


def test_swapping_base_and_candidate_negates_the_pooled_drift():
    one = judged(drift_of(FEW), drift_of(OTHER, "b"))
    other = judged(drift_of(-np.array(FEW)), drift_of(-np.array(OTHER), "b"))
    assert one.pooled_sigma == -other.pooled_sigma
    assert one.pooled_interval == tuple(-end for end in reversed(other.pooled_interval))


RUNS = 1_000
MONTE_CARLO = 2.0 * math.sqrt(0.05 * 0.95 / RUNS)


def simulated(seed, *, drifts, kind="normal"):
    """p-values (pooled, max-z, Fisher, overall) of RUNS runs: three tasks, one metric twice."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(RUNS):
        metrics = []
        for task, drift in zip("abc", drifts, strict=True):
            if kind == "normal":
                d = rng.normal(drift, 1.0, 40)
            else:  # answers: most stay, a few are lost or won
                d = rng.choice([-1.0, 0.0, 1.0], 40, p=[0.1, 0.8, 0.1]) + drift
            close = d + rng.normal(0.0, 0.3, 40) * (d != 0.0)
            metrics += [drift_of(d, task), drift_of(d, task, "copy"), drift_of(close, task, "near")]
        got = judged(*metrics, resamples=199)
        found.append((got.pooled_p_value, got.max_z_p_value, got.fisher_p_value, got.p_value))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "answers"])
def test_every_p_value_keeps_its_size_with_metrics_that_depend_on_each_other(kind):
    p_values = simulated(17, drifts=(0.0, 0.0, 0.0), kind=kind)
    assert np.all((p_values <= 0.05).mean(axis=0) <= 0.055 + MONTE_CARLO)


@pytest.mark.slow
def test_a_drift_in_all_tasks_and_one_in_a_single_task_are_both_seen():
    everywhere = (simulated(23, drifts=(0.2, 0.2, 0.2)) <= 0.05).mean(axis=0)
    single = (simulated(29, drifts=(0.6, 0.0, 0.0)) <= 0.05).mean(axis=0)
    # by the normal approximation: z = 0.2 sqrt(120) = 2.19, and 0.6 sqrt(40) = 3.79 in one task
    assert everywhere[0] == pytest.approx(stats.norm.sf(1.645 - 2.19), abs=0.05)
    assert everywhere[0] > everywhere[1]
    assert single[1] > single[0]
    for power in (everywhere, single):
        assert power[3] >= power[:3].max() - 0.12  # the price of not knowing which one to take
